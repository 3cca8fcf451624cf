import type { Step, StepState } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { readCheckpoint, type StateAt, stateAddress } from '../api.ts';
import { useLoaded, usePage } from '../context.ts';
import { bytes, count, counted, visible } from '../format.ts';
import { compareStates } from './compare_states.ts';
import { JsonView, MarkedImage, TextView } from './content.tsx';
import { type Change, compareWords } from './patch.ts';
import { isJson, stateText } from './state_text.ts';
import { Download, IMAGE, useStored } from './stored.tsx';

interface StatesProps {
  readonly trajectoryId: string;
  readonly step: number;
  readonly others: readonly string[];
  readonly nameOfId: (id: string) => string;
}

/** What a state is compared with. */
interface Base {
  readonly trajectoryId: string;
  /** The step that has the state. Undefined if there is none. */
  readonly step: Step | undefined;
  /** Name of the trajectory. Undefined: the same trajectory, at its checkpoint before. */
  readonly name: string | undefined;
}

/** Trajectories that are offered for a comparison. */
const MOST_OTHERS = 100;

/** The states at a step, and what changed in them: since the checkpoint before, or against another trajectory. */
export function States({ trajectoryId, step, others, nameOfId }: StatesProps) {
  const { api, address, set } = usePage();
  const wanted = address.query.get('against');
  const against = wanted !== trajectoryId && others.includes(wanted ?? '') ? (wanted ?? undefined) : undefined;
  // Both at once: the state at this step or before it, and the one that it is compared with.
  const { value, isOld, error } = useLoaded(`states ${trajectoryId} ${step} ${against}`, async (signal) => {
    const [now, before] = await Promise.all([
      readCheckpoint(api, trajectoryId, step, signal),
      readCheckpoint(api, against ?? trajectoryId, against === undefined ? step - 1 : step, signal),
    ]);
    const name = against === undefined ? undefined : nameOfId(against);
    const here = now !== undefined && Number(now.stepNumber) === step;
    return { now, here, trajectoryId, base: { trajectoryId: against ?? trajectoryId, step: before, name } };
  });
  if (error !== undefined) return <p class="problem">{error}</p>;
  if (value?.now === undefined) return null;
  const { now, here, base } = value;
  const at = (name: string): StateAt => ({ trajectoryId: value.trajectoryId, stepNumber: now.stepNumber, name });
  const choices = others.filter((id) => id !== trajectoryId).slice(0, MOST_OTHERS);
  return (
    <div class="states" aria-busy={isOld}>
      {choices.length > 0 && (
        <section>
          <label class="against">
            <span class="dim">Compare states with</span>{' '}
            <select
              value={against ?? ''}
              onChange={(event) => set({ against: event.currentTarget.value }, { replace: true })}
            >
              <option value="">the checkpoint before</option>
              {choices.map((id) => (
                <option key={id} value={id}>
                  {nameOfId(id)}
                </option>
              ))}
            </select>
          </label>
        </section>
      )}
      {now.states.map((state) => (
        <section key={state.name}>
          <h3>
            State <span class="label">{visible(state.name)}</span>
            <span class="dim">
              {here ? '' : `of step ${count(now.stepNumber)}, `}
              {bytes(Number(state.size))}
            </span>
          </h3>
          {state.prunedTime !== undefined ? (
            <p class="dim">The state was pruned: its bytes are gone.</p>
          ) : here || base.name !== undefined ? (
            <StateChange state={state} at={at(state.name)} base={base} />
          ) : (
            <p class="dim">This step has no state.</p>
          )}
          <p>
            <Download address={stateAddress(at(state.name))} name={`${state.name}-${now.stepNumber}`}>
              Download
            </Download>
          </p>
        </section>
      ))}
    </div>
  );
}

interface StateChangeProps {
  readonly state: StepState;
  readonly at: StateAt;
  readonly base: Base;
}

function StateChange({ state, at, base: { trajectoryId, step: before, name } }: StateChangeProps) {
  const old = before?.states.find((each) => each.name === state.name);
  const since = `${name === undefined ? 'since' : `from ${name},`} step ${count(before?.stepNumber ?? 0n)}`;
  // The words belong to the changes, which stay until others are read.
  const compared = useLoaded(`${at.trajectoryId} ${trajectoryId} ${old?.digest} ${state.digest}`, async (signal) => {
    if (before === undefined || old === undefined || old.digest === state.digest) return undefined;
    const then = { ...at, trajectoryId, stepNumber: before.stepNumber, mediaType: old.mediaType };
    return { since, changes: await compareStates(then, { ...at, mediaType: state.mediaType }, signal) };
  });
  if (IMAGE.test(state.mediaType)) return <StateImage at={at} mediaType={state.mediaType} />;
  if (old === undefined) return <FirstState state={state} />;
  if (old.digest === state.digest)
    return <p class="dim">{name === undefined ? `Unchanged ${since}.` : `No difference ${since}.`}</p>;
  if (compared.error !== undefined) return <p class="problem">{compared.error}</p>;
  if (compared.value === undefined) return null;
  if (compared.value.changes === undefined)
    return <p class="dim">Changed {compared.value.since}. It is no JSON, so changes are not shown.</p>;
  return <ChangeTable {...compared.value} changes={compared.value.changes} isOld={compared.isOld} />;
}

function StateImage({ at, mediaType }: { readonly at: StateAt; readonly mediaType: string }) {
  return <MarkedImage url={useStored(stateAddress(at), mediaType)} />;
}

function FirstState({ state }: { readonly state: StepState }) {
  const json = isJson(state.mediaType);
  if (state.data === undefined || !(json || state.mediaType.startsWith('text/'))) return null;
  const text = stateText(state.mediaType, state.data);
  return json ? <JsonView json={text} /> : <TextView text={text} />;
}

/** More changes are not listed. */
const MOST_CHANGES = 200;

interface ChangeTableProps {
  readonly changes: readonly Change[];
  readonly since: string;
  readonly isOld: boolean;
}

function ChangeTable({ changes, since, isOld }: ChangeTableProps) {
  if (changes.length === 0)
    return (
      <p class="dim" aria-busy={isOld}>
        No value changed {since}.
      </p>
    );
  return (
    <div class="scroll" aria-busy={isOld}>
      <table class="changes">
        <caption>
          {counted(changes.length, 'change')} {since}
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
