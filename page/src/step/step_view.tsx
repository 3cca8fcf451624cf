import type { Action, Observation, Step, StepState } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { addressOf } from '../address.ts';
import { compareStates, dateOf, readCheckpoint, readJsonState, readStep, type StateAt, stateAddress } from '../api.ts';
import { useLoaded, usePage } from '../context.ts';
import { bytes, count, counted, duration, nameOf, number, visible } from '../format.ts';
import type { Item } from '../tree/rows.ts';
import { ContentView, JsonView, MarkedImage, TextView, TokensView } from './content.tsx';
import { type Stroke, strokeOf } from './marks.ts';
import { type Change, changesOf, compareWords } from './patch.ts';

interface StepViewProps {
  readonly trajectory: Item;
  readonly step: number;
  readonly onStep: (step: number) => void;
  readonly nameOfId: (id: string) => string;
}

/** One step of a trajectory: what was done and seen, the state after it, and what changed in it. */
export function StepView({ trajectory, step, onStep, nameOfId }: StepViewProps) {
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
        <Stepper step={step} last={last} onStep={onStep} />
      </header>
      {last < 0 ? <p class="dim">No steps yet.</p> : <StepBody {...{ trajectory, step, nameOfId }} />}
    </aside>
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

function StepBody({ trajectory, step, nameOfId }: Omit<StepViewProps, 'onStep'>) {
  const { api } = usePage();
  const { id } = trajectory;
  const loaded = useLoaded(`step ${id} ${step}`, (signal) => readStep(api, id, step, signal));
  // Both at once: the state at this step or before it, and the one before that.
  const states = useLoaded(`states ${id} ${step}`, async (signal) => {
    const [now, before] = await Promise.all([
      readCheckpoint(api, id, step, signal),
      readCheckpoint(api, id, step - 1, signal),
    ]);
    return { now, before };
  });
  const { value } = loaded;
  if (value === undefined) return loaded.error === undefined ? null : <p class="problem">{loaded.error}</p>;
  return (
    <div class="step-body">
      {loaded.error !== undefined && <p class="problem">{loaded.error}</p>}
      <Facts step={value.step} owner={value.owner === id ? undefined : nameOfId(value.owner)} />
      <Turn trajectoryId={id} step={value.step} />
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
      <States trajectoryId={id} step={step} now={states.value?.now} before={states.value?.before} />
    </div>
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

/** Actions, each with the observations that answer it, then the other observations. */
function Turn({ trajectoryId, step }: { readonly trajectoryId: string; readonly step: Step }) {
  const { api } = usePage();
  const strokes = step.actions.map((action) => strokeOf(action.content?.json ?? ''));
  const points = strokes.some((stroke) => stroke !== undefined) && step.stepNumber > 0n;
  const seen = useLoaded(`seen ${points} ${trajectoryId} ${step.stepNumber}`, async (signal) => {
    return points ? imageIn((await readStep(api, trajectoryId, Number(step.stepNumber) - 1, signal)).step) : undefined;
  });
  const calls = new Set(step.actions.map(({ callId }) => callId).filter((each) => each !== ''));
  const others = step.observations.filter(({ callId }) => !calls.has(callId));
  return (
    <>
      {step.actions.map((action, at) => (
        <section key={at}>
          <ActionView action={action} />
          {strokes[at] !== undefined && <SeenImage observation={seen.value} stroke={strokes[at]} />}
          {step.observations
            .filter(({ callId }) => callId !== '' && callId === action.callId)
            .map((observation, answer) => (
              <ObservationView key={answer} observation={observation} />
            ))}
        </section>
      ))}
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

function ActionView({ action }: { readonly action: Action }) {
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
        {action.tokenIds.length > 0 && <span class="dim">{counted(action.tokenIds.length, 'token')}</span>}
      </h3>
      {action.content !== undefined && <ContentView content={action.content} />}
      {action.logprobs.length > 0 && <TokensView action={action} />}
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

interface StatesProps {
  readonly trajectoryId: string;
  readonly step: number;
  readonly now: Step | undefined;
  readonly before: Step | undefined;
}

function States({ trajectoryId, step, now, before }: StatesProps) {
  if (now === undefined) return null;
  const at = (name: string): StateAt => ({ trajectoryId, stepNumber: now.stepNumber, name });
  const here = Number(now.stepNumber) === step;
  return (
    <>
      {now.states.map((state) => (
        <section key={state.name}>
          <h3>
            State <span class="label">{visible(state.name)}</span>
            <span class="dim">
              {here ? '' : `of step ${count(now.stepNumber)}, `}
              {bytes(Number(state.size))}
            </span>
          </h3>
          {here ? (
            <StateChange state={state} at={at(state.name)} before={before} />
          ) : (
            <p class="dim">This step has no state.</p>
          )}
          <p>
            <a href={stateAddress(at(state.name))} download={`${state.name}-${now.stepNumber}`}>
              Download
            </a>
          </p>
        </section>
      ))}
    </>
  );
}

const IMAGE = /^image\/(png|jpeg|webp|gif|avif)$/;

interface StateChangeProps {
  readonly state: StepState;
  readonly at: StateAt;
  readonly before: Step | undefined;
}

function StateChange({ state, at, before }: StateChangeProps) {
  const { api } = usePage();
  const old = before?.states.find(({ name }) => name === state.name);
  const compared = useLoaded(`${at.trajectoryId} ${old?.digest} ${state.digest}`, async (signal) => {
    if (before === undefined || old === undefined || old.digest === state.digest) return undefined;
    const then = { ...at, stepNumber: before.stepNumber };
    const [difference, document] = await Promise.all([
      compareStates(api, then, at, signal),
      readJsonState(then, signal).catch(() => undefined),
    ]);
    const { patchJson, identical } = difference;
    if (patchJson === undefined || document === undefined) return { identical, changes: undefined };
    return { identical, changes: changesOf(document, patchJson) };
  });
  if (IMAGE.test(state.mediaType)) return <MarkedImage url={stateAddress(at)} />;
  if (old === undefined) return <FirstState state={state} />;
  if (old.digest === state.digest) return <p class="dim">Unchanged since step {count(before?.stepNumber ?? 0n)}.</p>;
  if (compared.error !== undefined) return <p class="problem">{compared.error}</p>;
  if (compared.value === undefined) return null;
  if (compared.value.changes === undefined)
    return (
      <p class="dim">Changed since step {count(before?.stepNumber ?? 0n)}. It is no JSON, so changes are not shown.</p>
    );
  return <ChangeTable changes={compared.value.changes} since={before?.stepNumber ?? 0n} />;
}

function FirstState({ state }: { readonly state: StepState }) {
  if (state.data === undefined || !/json|^text\//.test(state.mediaType)) return null;
  const text = new TextDecoder().decode(state.data);
  return /json/.test(state.mediaType) ? <JsonView json={text} /> : <TextView text={text} />;
}

/** More changes are not listed. */
const MOST_CHANGES = 200;

function ChangeTable({ changes, since }: { readonly changes: readonly Change[]; readonly since: bigint }) {
  if (changes.length === 0) return <p class="dim">No value changed since step {count(since)}.</p>;
  return (
    <div class="scroll">
      <table class="changes">
        <caption>
          {counted(changes.length, 'change')} since step {count(since)}
        </caption>
        <thead class="only-read">
          <tr>
            <th scope="col">Path</th>
            <th scope="col">Before</th>
            <th scope="col">After</th>
          </tr>
        </thead>
        <tbody>
          {changes.slice(0, MOST_CHANGES).map((change, at) => (
            <tr key={at}>
              <th scope="row">{visible(change.path) || 'all'}</th>
              <ChangedValues change={change} />
            </tr>
          ))}
        </tbody>
      </table>
      {changes.length > MOST_CHANGES && <p class="dim">{counted(changes.length - MOST_CHANGES, 'more change')}</p>}
    </div>
  );
}

function ChangedValues({ change: { kind, before, after } }: { readonly change: Change }) {
  if (typeof before === 'string' && typeof after === 'string' && before.length + after.length > 60) {
    return (
      <td colSpan={2}>
        {compareWords(before, after).map((part, at) => {
          const text = visible(
            part.text.length > 400 && part.in === 'both'
              ? `${part.text.slice(0, 80)} … ${part.text.slice(-80)}`
              : part.text,
          );
          return part.in === 'before' ? (
            <del key={at}>{text}</del>
          ) : part.in === 'after' ? (
            <ins key={at}>{text}</ins>
          ) : (
            <span key={at}>{text}</span>
          );
        })}
      </td>
    );
  }
  return (
    <>
      <td>{kind !== 'add' && <del>{shortened(before)}</del>}</td>
      <td>{kind !== 'remove' && <ins>{shortened(after)}</ins>}</td>
    </>
  );
}

function shortened(value: unknown): string {
  const fraction = typeof value === 'number' && !Number.isInteger(value);
  const text = JSON.stringify(fraction ? Number(value.toPrecision(8)) : value) ?? '';
  return visible(text.length > 160 ? `${text.slice(0, 157)}…` : text);
}
