import { useState } from 'preact/hooks';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { addressOf } from '../address.ts';
import { Announcer } from '../announcer.tsx';
import { readGroup, type Sibling, watchRollouts } from '../api.ts';
import { useLatest, usePage } from '../context.ts';
import { count, counted, number, visible } from '../format.ts';
import { useWatched } from '../live.ts';
import { Lost } from '../lost.tsx';
import { StatusMark } from '../status.tsx';
import { statusName } from '../status_name.ts';
import { summaryOf } from '../step/summary.ts';
import { Verdict } from './verdict.tsx';

/** A group: its rollouts side by side, turn by turn. */
export function GroupView({ id }: { readonly id: string }) {
  const { api } = usePage();
  const [runId, setRunId] = useState('');
  const watched = useWatched(`group of ${runId}`, (events) =>
    watchRollouts(runId, ({ groupId }) => groupId === id, events),
  );
  const { value, error } = useLatest(`group ${id}`, `${watched.value}`, async (signal) => {
    const read = await readGroup(api, id, signal);
    setRunId(read.group.runId);
    return read;
  });
  if (value === undefined)
    return error === undefined ? <p class="loading">Loading the group …</p> : <p class="problem">{error}</p>;
  const { group, siblings } = value;
  const { statistics } = group;
  const turns = Math.max(1, ...siblings.map(({ steps }) => steps.length));
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
          <Lost stale={watched.stale} />
          <Announcer
            text={`${statusName(group.status)}, ${counted(
              siblings.reduce((sum, { rollout }) => sum + Number(rollout.turns), 0),
              'turn',
            )}`}
          />
          <span class="space" />
          <a href={`/runs/${group.runId}`}>Run</a>
        </div>
      </header>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, also by keyboard */}
      <section class="side" aria-label="rollouts side by side" tabIndex={0} style={{ '--turns': turns }}>
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
      <header>
        <h2>
          <a href={`/rollouts/${rollout.id}`}>Rollout {count(rollout.number)}</a>
        </h2>
        <p class="verdict">
          <Verdict rollout={rollout} />
          <strong class="figure">{number(rollout.reward)}</strong>
          {rollout.attempt > 1 && <span class="dim">attempt {rollout.attempt}</span>}
          {rollout.status !== Status.COMPLETED && <StatusMark status={rollout.status} />}
        </p>
        {rollout.statusMessage !== '' && <p class="dim">{visible(rollout.statusMessage)}</p>}
      </header>
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
