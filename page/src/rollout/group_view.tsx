import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { addressOf } from '../address.ts';
import { readGroup, type Sibling } from '../api.ts';
import { useLoaded, usePage } from '../context.ts';
import { count, counted, number } from '../format.ts';
import { StatusMark } from '../status.tsx';
import { summaryOf } from '../step/summary.ts';
import { Verdict } from './verdict.tsx';

/** A group: its rollouts side by side, turn by turn. */
export function GroupView({ id }: { readonly id: string }) {
  const { api } = usePage();
  const { value, error } = useLoaded(`group ${id}`, (signal) => readGroup(api, id, signal));
  if (value === undefined)
    return error === undefined ? <p class="loading">Loading the group …</p> : <p class="problem">{error}</p>;
  const { group, siblings } = value;
  const { statistics } = group;
  return (
    <div class="rollout">
      <header>
        <div class="title-bar">
          <h1>Group {count(group.number)}</h1>
          <StatusMark status={group.status} />
          <span class="dim figure">
            reward {number(statistics?.rewardMean)} ± {number(statistics?.rewardStd)}
          </span>
          <span class="dim figure">
            {count(statistics?.successCount ?? 0n)} of {count(statistics?.judgedCount ?? 0n)} successful
          </span>
          <span class="space" />
          <a href={`/runs/${group.runId}`}>Run</a>
        </div>
      </header>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, also by keyboard */}
      <section class="side" aria-label="rollouts side by side" tabIndex={0}>
        {siblings.map((sibling) => (
          <SiblingView key={sibling.rollout.id} {...sibling} />
        ))}
      </section>
    </div>
  );
}

function SiblingView({ rollout, steps, more }: Sibling) {
  return (
    <article class="sibling">
      <h2>
        <a href={`/rollouts/${rollout.id}`}>Rollout {count(rollout.number)}</a>
      </h2>
      <p class="verdict">
        <Verdict rollout={rollout} />
        <strong class="figure">{number(rollout.reward)}</strong>
        {rollout.attempt > 1 && <span class="dim">attempt {rollout.attempt}</span>}
        {rollout.status !== Status.COMPLETED && <StatusMark status={rollout.status} />}
      </p>
      <ol>
        {steps.map((step) => (
          <li key={String(step.stepNumber)}>
            <a
              class="figure"
              href={addressOf(`/trees/${rollout.trajectoryId}`, { at: rollout.trajectoryId, step: step.stepNumber })}
            >
              {count(step.stepNumber)}
            </a>
            <span>{summaryOf(step)}</span>
            <span class="figure dim">{step.reward === undefined ? '' : number(step.reward)}</span>
          </li>
        ))}
      </ol>
      {more > 0 && <p class="dim">{counted(more, 'more turn')}</p>}
    </article>
  );
}
