import { create } from '@bufbuild/protobuf';
import {
  type ReadStatesResponse,
  ReadStatesResponseSchema,
  type StateRange,
  type StateReference,
} from '../../../gen/es/anabranch/v1/state_service_pb.js';
import type { ListStepsRequest } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField, stateCorrupt } from '../../domain/errors.ts';
import { type Digest, parseDigest } from '../../domain/ids.ts';
import { LIMITS } from '../../domain/limits.ts';
import {
  contentStates,
  DEFAULT_STATE_NAME,
  isKept,
  type RestoredState,
  type StateRef,
  type StoredStep,
} from '../../domain/step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import type { OwnedState } from '../../store/contract/step.ts';
import { requireStillThere } from '../../stream/find.ts';
import { InlineStates, readTogether } from '../../stream/steps/inline_states.ts';
import { endOfRange, findRange } from '../../stream/steps/read.ts';
import { stepBytes, trajectoryDeleted } from '../../stream/steps/step_page.ts';
import { totalBytes } from '../answer/message.ts';
import type { Call } from '../method.ts';
import { findListed } from '../trajectory/step_list.ts';
import { isMissing, rowReader, smallReader, stateBytes } from './bytes.ts';
import { addressOf, contentBytes, findContent, statePruned } from './content.ts';

/** A message with one piece, or with what comes before all pieces. */
export interface Part {
  readonly message: ReadStatesResponse;
  /** Bytes of its content. */
  readonly bytes: number;
}

type Parts = AsyncGenerator<Part, void, undefined>;

/** The step that a source names for a state. */
interface StateStep {
  readonly owner: OwnedState['owner'];
  readonly stepNumber: bigint;
  readonly mediaType: string;
}

/** How many states one statement lists. */
const LISTED = 256;

/**
 * S5: returns the states of a range of steps. Errors: TRAJECTORY_NOT_FOUND, RANGE_BEYOND_END, TRAJECTORY_DELETED,
 * STATE_PRUNED, STATE_CORRUPT.
 */
export async function* statesOfRange(range: StateRange, { app, caller }: Call): Parts {
  const { namespace } = caller;
  const trajectory = await findRange(app, caller, range);
  const last: RestoredState = {};
  for await (const found of pickStates({ app, caller }, trajectory, range)) {
    const { owner, stepNumber, state } = found;
    const read = state.data === undefined ? rowReader(app.store, namespace, state, last) : smallReader(state.data);
    const step = { owner, stepNumber, mediaType: state.mediaType };
    yield* piecesOf(state, stateBytes(read, state, 0, state.size), step, async (isBegun) => {
      const now = await stateNow({ app, caller }, trajectory, found);
      if (now?.prunedTime === undefined) {
        // States exist as long as their step, or until they are pruned. So the step was deleted, or the store lost it.
        await requireStillThere(app, caller, trajectory, trajectoryDeleted);
        throw stateCorrupt(state.digest);
      }
      if (isBegun) throw statePruned({ trajectoryId: trajectory.id, stepNumber }, now);
    });
  }
  // Not every step has such a state. So only the trajectory's existence proves that the response is complete (RD1).
  await requireStillThere(app, caller, trajectory, trajectoryDeleted);
}

/** S10: returns a state for each reference. Errors: as GetState. */
export async function* statesByReference(references: readonly StateReference[], call: Call): Parts {
  for (const reference of references) {
    const found = await findContent(call, addressOf('', reference));
    yield* piecesOf(found, contentBytes(call, found), { ...found.step!, mediaType: found.mediaType });
  }
}

/** S10: returns states by digest, each once, and the digests without one. Errors: INVALID_REQUEST, STATE_CORRUPT. */
export async function* statesByDigest(requested: readonly string[], { app, caller }: Call): Parts {
  const { namespace } = caller;
  const digests = [...new Set(requested.map((digest, i) => parseDigest(digest, `digests[${i}]`)))];
  const located = await app.store.locateStates(namespace, digests);
  const unknown = digests.filter((digest) => !located.has(digest));
  if (unknown.length > 0) yield without(unknown);
  const states = digests.flatMap((digest) => located.get(digest) ?? []);
  const deleted: Digest[] = [];
  const last: RestoredState = {};
  for await (const [state, data] of readTogether(app.store, namespace, states)) {
    const read = data === undefined ? rowReader(app.store, namespace, state, last) : smallReader(data);
    yield* piecesOf(
      state,
      stateBytes(read, state, 0, state.size),
      undefined,
      async () => void deleted.push(state.digest),
    );
  }
  if (deleted.length > 0) yield without(deleted);
}

function without(unknownDigests: string[]): Part {
  return { message: create(ReadStatesResponseSchema, { unknownDigests }), bytes: 0 };
}

/**
 * Returns listed steps, and then what they name: small states together, large ones one after the other. Errors: as
 * ListSteps, STATE_CORRUPT.
 */
export async function* statesOfSteps(request: ListStepsRequest, call: Call): Parts {
  if (request.inlineBytes > 0) throw invalidField('steps.inline_bytes', 'must be unset: states of any size are read');
  const { app, caller } = call;
  const { found, answer } = await findListed(request, call, LIMITS.chunkBytes, 'steps.');
  const message = create(ReadStatesResponseSchema, await answer(found.length));
  yield { message, bytes: totalBytes(found, ({ step }) => stepBytes(step)) };
  const sent = new Set<Digest>();
  const inline = new InlineStates(app.store, caller.namespace, LIMITS.chunkBytes);
  inline.expect(found);
  const last: RestoredState = {};
  for (const owned of found) {
    for await (const blobs of inline.of(owned)) {
      for (const { digest, data } of blobs) {
        if (sent.has(digest)) continue;
        sent.add(digest);
        yield* piecesOf({ digest, size: data.length }, data.length > 0 ? [data] : []);
      }
    }
    const large = namedBy(owned.step).filter((digest) => !sent.has(digest));
    if (large.length === 0) continue;
    const located = await app.store.locateStates(caller.namespace, large);
    for (const digest of large) sent.add(digest);
    for (const state of located.values()) {
      const read = rowReader(app.store, caller.namespace, state, last);
      yield* piecesOf(state, stateBytes(read, state, 0, state.size), undefined, async () => undefined);
    }
  }
}

/** Returns the states and contents that a step names, each once, without pruned ones. */
function namedBy(step: StoredStep): readonly Digest[] {
  return [...new Set([...contentStates(step), ...step.states.filter(isKept).map(({ digest }) => digest)])];
}

/** Returns every k-th state, where k is `every`. */
async function* pickStates(
  { app, caller: { namespace } }: Pick<Call, 'app' | 'caller'>,
  trajectory: Trajectory,
  { name, every, startStepNumber, endStepNumber }: StateRange,
): AsyncGenerator<OwnedState, void, undefined> {
  let from = startStepNumber;
  const end = endOfRange(trajectory, endStepNumber);
  const lineage = await app.lineages.within(app.store, namespace, trajectory, from, end);
  let found = 0n;
  for (;;) {
    const wanted = { name: name || DEFAULT_STATE_NAME, from, limit: LISTED };
    const page = await app.store.listStepStates(namespace, trajectory.ref.tree, lineage, wanted);
    for (const state of page) {
      if (every <= 1n || found % every === 0n) yield state;
      found += 1n;
      from = state.stepNumber + 1n;
    }
    if (page.length < LISTED) return;
  }
}

/** Returns a state of a range as its step names it now. */
async function stateNow(
  { app, caller }: Pick<Call, 'app' | 'caller'>,
  { ref }: Trajectory,
  { owner, stepNumber, state }: OwnedState,
): Promise<StateRef | undefined> {
  const itself = { key: owner.key, from: stepNumber, to: stepNumber + 1n };
  const one = { ...itself, maxSteps: 1, maxBytes: 0 };
  const [step] = await app.store.readSteps(caller.namespace, ref.tree, [itself], one, 'BASIC');
  return step?.step.states.find(({ name }) => name === state.name);
}

/**
 * Returns a state in messages of one piece each: one if it is empty. If the state is deleted meanwhile, `onMissing`
 * throws the error of the call, or leaves out the rest of the state.
 */
async function* piecesOf(
  { digest, size }: StateInfo,
  bytes: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  step?: StateStep,
  onMissing?: (isBegun: boolean) => Promise<void>,
): Parts {
  const partAt = (offset: number, data: Uint8Array): Part => {
    const { stepNumber = 0n, mediaType = '' } = step ?? {};
    const piece = { stepNumber, digest, mediaType, size: BigInt(size), offset: BigInt(offset), data };
    const message = create(ReadStatesResponseSchema, { trajectoryId: step?.owner.id ?? '', pieces: [piece] });
    return { message, bytes: data.length };
  };
  let offset = 0;
  try {
    for await (const data of bytes) {
      yield partAt(offset, data);
      offset += data.length;
    }
  } catch (error) {
    if (onMissing === undefined || !isMissing(error)) throw error;
    await onMissing(offset > 0);
  }
  if (size === 0) yield partAt(0, new Uint8Array());
}
