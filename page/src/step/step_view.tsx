import type { Observation, Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { addressOf } from '../address.ts';
import { dateOf, readStep } from '../api.ts';
import { useLoaded, usePage } from '../context.ts';
import { count, duration, nameOf, number, signed, visible } from '../format.ts';
import { trajectoryOperations } from '../operations/operation.ts';
import { Operations } from '../operations/operations.tsx';
import { StatusMark } from '../status.tsx';
import type { Item } from '../tree/rows.ts';
import { ContentView, JsonView } from './content.tsx';
import { Conversation } from './conversation.tsx';
import { type Stroke, strokeOf } from './marks.ts';
import { States } from './states.tsx';
import { type ActionTokens, withTokens } from './tokens.ts';
import { TokensOf } from './tokens_view.tsx';

interface StepViewProps {
  readonly trajectory: Item;
  readonly step: number;
  readonly onStep: (step: number) => void;
  /** Ids of trajectories of the tree whose states can be compared. */
  readonly others: readonly string[];
  readonly nameOfId: (id: string) => string;
}

/** One step of a trajectory: what was done and seen, the state after it, and what changed in it. */
export function StepView({ trajectory, step, onStep, others, nameOfId }: StepViewProps) {
  const last = trajectory.end - 1;
  return (
    <aside class="step" aria-labelledby="step-title">
      <header>
        <h2 id="step-title">{nameOf(trajectory)}</h2>
        {trajectory.parentId !== '' && (
          <a href={addressOf('/compare', { ids: `${trajectory.parentId},${trajectory.id}` })}>
            Compare with its parent
          </a>
        )}
        <TrajectoryFacts trajectory={trajectory} onStep={onStep} />
        <Stepper step={step} last={last} onStep={onStep} />
        {last >= 0 && !trajectory.deleted && <Operations of={trajectoryOperations(trajectory, step)} />}
      </header>
      {last < 0 ? (
        <p class="dim">No steps yet.</p>
      ) : (
        <StepBody trajectory={trajectory} step={step} onStep={onStep} others={others} nameOfId={nameOfId} />
      )}
    </aside>
  );
}

/** What the row of the trajectory shows: narrow screens have no room for it there. */
function TrajectoryFacts({
  trajectory: { status, deleted, gain, reward, run, tags = [] },
  onStep,
}: Pick<StepViewProps, 'trajectory' | 'onStep'>) {
  return (
    <p class="trajectory-facts">
      {deleted ? <span class="dim">deleted</span> : <StatusMark status={status} />}
      <span>
        <span class="dim">reward</span> <span class="figure">{number(reward)}</span>
      </span>
      {gain !== undefined && (
        <span>
          <span class="dim">gain</span> <span class="figure">{signed(gain)}</span>
        </span>
      )}
      {run !== undefined && <a href={`/runs/${run.id}`}>Run {nameOf(run)}</a>}
      {tags.map((tag) => (
        <button
          key={tag.name}
          type="button"
          class="tag"
          title={`go to step ${count(tag.step)}`}
          onClick={() => onStep(tag.step)}
        >
          {visible(tag.name)} <span class="dim figure">@{count(tag.step)}</span>
        </button>
      ))}
    </p>
  );
}

function Stepper({
  step,
  last,
  onStep,
}: {
  readonly step: number;
  readonly last: number;
  readonly onStep: (step: number) => void;
}) {
  const button = (to: number, name: string, path: string) => (
    <button
      type="button"
      class="icon"
      aria-label={name}
      title={name}
      disabled={to === step || to < 0 || to > last}
      onClick={() => onStep(to)}
    >
      <svg viewBox="0 0 16 16" aria-hidden="true">
        <path d={path} />
      </svg>
    </button>
  );
  return (
    <div class="stepper">
      <div>
        {button(0, 'first step', 'M4 3v10M12 3.5l-5 4.5l5 4.5')}
        {button(step - 1, 'previous step (p)', 'M10 3.5l-5 4.5l5 4.5')}
        <label>
          <span class="dim">Step</span>{' '}
          <input
            type="number"
            min={0}
            max={Math.max(0, last)}
            value={step}
            onChange={(event) => onStep(Math.max(0, Math.min(last, Math.floor(Number(event.currentTarget.value)))))}
          />{' '}
          <span class="dim figure">of {count(Math.max(0, last))}</span>
        </label>
        {button(step + 1, 'next step (n)', 'M6 3.5l5 4.5l-5 4.5')}
        {button(last, 'last step', 'M12 3v10M4 3.5l5 4.5l-5 4.5')}
      </div>
      <input
        type="range"
        aria-label="step"
        min={0}
        max={Math.max(0, last)}
        value={step}
        onInput={(event) => onStep(Number(event.currentTarget.value))}
      />
    </div>
  );
}

function StepBody({ trajectory, step, onStep, others, nameOfId }: StepViewProps) {
  const { api } = usePage();
  const { id } = trajectory;
  // What belongs to the step stays with it until another one is read.
  const { value, isOld, error } = useLoaded(`step ${id} ${step}`, async (signal) => ({
    ...(await readStep(api, id, step, signal)),
    trajectoryId: id,
  }));
  if (error !== undefined) return <p class="problem">{error}</p>;
  if (value === undefined) return null;
  const { trajectoryId, owner } = value;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, also by keyboard
    <section class="step-body" aria-label="content of the step" aria-busy={isOld} tabIndex={0}>
      <Facts step={value.step} owner={owner === trajectoryId ? undefined : nameOfId(owner)} />
      <Conversation trajectoryId={trajectoryId} step={value.step} onStep={onStep} />
      <Turn trajectoryId={trajectoryId} step={value.step} />
      {value.step.infoJson !== '' && (
        <section>
          <h3>Info</h3>
          <JsonView json={value.step.infoJson} />
        </section>
      )}
      {value.step.metadataJson !== '' && (
        <section>
          <h3>Metadata</h3>
          <JsonView json={value.step.metadataJson} />
        </section>
      )}
      <States trajectoryId={id} step={step} others={others} nameOfId={nameOfId} />
    </section>
  );
}

function Facts({ step, owner }: { readonly step: Step; readonly owner: string | undefined }) {
  const [start, end, commit] = [dateOf(step.startTime), dateOf(step.endTime), dateOf(step.commitTime)];
  const facts: [string, string][] = [
    ['Reward', number(step.reward, 6)],
    ['Sum', number(step.rewardSum, 6)],
    ...Object.entries(step.metrics).map(([key, metric]): [string, string] => [visible(key), number(metric, 6)]),
  ];
  if (start !== undefined && end !== undefined)
    facts.push(['Duration', duration(Math.max(0, end.getTime() - start.getTime()) / 1000)]);
  if (commit !== undefined) facts.push(['Stored', commit.toISOString().replace('T', ' ').slice(0, 19)]);
  if (step.terminated || step.truncated) facts.push(['End', step.terminated ? 'terminated' : 'truncated']);
  if (owner !== undefined) facts.push(['Shared with', owner]);
  return (
    <dl class="facts">
      {facts.map(([name, text]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd class="figure">{text}</dd>
        </div>
      ))}
    </dl>
  );
}

/**
 * Actions, each beside the observations that answer it where the window is wide enough, then the other observations.
 */
function Turn({ trajectoryId, step }: { readonly trajectoryId: string; readonly step: Step }) {
  const { api } = usePage();
  const actions = withTokens(step.actions);
  const strokes = actions.map(({ action }) => strokeOf(action.content?.json ?? ''));
  const points = strokes.some((stroke) => stroke !== undefined) && step.stepNumber > 0n;
  const seen = useLoaded(`seen ${points} ${trajectoryId} ${step.stepNumber}`, async (signal) => {
    return points ? imageIn((await readStep(api, trajectoryId, Number(step.stepNumber) - 1, signal)).step) : undefined;
  });
  const calls = new Set(actions.map(({ action }) => action.callId).filter((each) => each !== ''));
  const others = step.observations.filter(({ callId }) => !calls.has(callId));
  return (
    <>
      {actions.map((of, at) => {
        const answers = step.observations.filter(({ callId }) => callId !== '' && callId === of.action.callId);
        return (
          <section key={at} class="turn">
            <div>
              <ActionView of={of} />
              {strokes[at] !== undefined && <SeenImage observation={seen.value} stroke={strokes[at]} />}
            </div>
            {answers.length > 0 && (
              <div>
                {answers.map((observation, answer) => (
                  <ObservationView key={answer} observation={observation} />
                ))}
              </div>
            )}
          </section>
        );
      })}
      {others.map((observation, at) => (
        <section key={at}>
          <ObservationView observation={observation} />
        </section>
      ))}
    </>
  );
}

function imageIn(step: Step): Observation | undefined {
  return step.observations.findLast(({ content }) => content?.mediaType.startsWith('image/'));
}

function SeenImage({
  observation,
  stroke,
}: {
  readonly observation: Observation | undefined;
  readonly stroke: Stroke | undefined;
}) {
  return observation?.content === undefined ? null : <ContentView content={observation.content} stroke={stroke} />;
}

/** Types of actions whose text is a program. */
const CODE = /code|python|bash|shell/i;

function ActionView({ of }: { readonly of: ActionTokens }) {
  const { action } = of;
  return (
    <>
      <h3>
        Action{' '}
        {[action.type, action.name]
          .filter((each) => each !== '')
          .map((each) => (
            <span key={each} class="label">
              {visible(each)}
            </span>
          ))}
      </h3>
      {action.content !== undefined && <ContentView content={action.content} code={CODE.test(action.type)} />}
      <TokensOf of={of} />
    </>
  );
}

function ObservationView({ observation }: { readonly observation: Observation }) {
  return (
    <>
      <h3>
        Observation {observation.type !== '' && <span class="label">{visible(observation.type)}</span>}
        {observation.isError && <span class="label error">error</span>}
      </h3>
      {observation.content !== undefined && <ContentView content={observation.content} />}
    </>
  );
}
