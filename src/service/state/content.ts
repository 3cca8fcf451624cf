import type { StateReference } from '../../../gen/es/anabranch/v1/state_service_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { AnabranchError, stateCorrupt, stateNotFound } from '../../domain/errors.ts';
import { type Digest, parseDigest, shorten } from '../../domain/ids.ts';
import { formatInstant } from '../../domain/instant.ts';
import { LIMITS } from '../../domain/limits.ts';
import { DEFAULT_STATE_NAME, isKept, type StateRef } from '../../domain/step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import type { OwnedStep } from '../../store/contract/step.ts';
import { findTrajectory, requireStillThere } from '../../stream/find.ts';
import { required } from '../convert/values.ts';
import type { Call } from '../method.ts';
import { stepAt } from '../trajectory/single_step.ts';
import { isMissing, rowReader, smallReader, stateBytes } from './bytes.ts';

/** Identifies a state by the digest of its bytes, or by its name at an own or inherited step. */
export type StateAddress =
  | { readonly digest: Digest }
  | { readonly trajectoryId: string; readonly stepNumber: bigint; readonly name: string };

/** A stored state. */
export interface FoundContent extends StateInfo {
  /** Media type that the step gives the state. Empty for a state that was requested by its digest. */
  readonly mediaType: string;
  /** The step of the reference. Undefined for a state that was requested by its digest. */
  readonly step?: StateStep;
}

/** The step of a state, and the trajectory that it was requested of. */
interface StateStep {
  readonly trajectory: Trajectory;
  readonly owner: OwnedStep['owner'];
  readonly stepNumber: bigint;
  readonly name: string;
}

/** What is needed to look up a state, and to read its bytes. */
interface Access extends Pick<Call, 'app'> {
  readonly caller: Caller;
}

/** Converts the two fields of a request of which exactly one is set. Errors: INVALID_REQUEST. */
export function addressOf(digest: string, reference: StateReference | undefined): StateAddress {
  if (reference === undefined) return { digest: parseDigest(digest, 'digest') };
  const { trajectoryId, stepNumber, name } = reference;
  return {
    trajectoryId,
    stepNumber: required(stepNumber, 'step_number'),
    name: name || DEFAULT_STATE_NAME,
  };
}

/** Looks up a state. Errors: STATE_NOT_FOUND, STATE_PRUNED, TRAJECTORY_NOT_FOUND, STEP_NOT_FOUND. */
export async function findContent({ app, caller }: Access, address: StateAddress): Promise<FoundContent> {
  if ('digest' in address) {
    const [info] = await app.store.findStates(caller.namespace, [address.digest], false);
    if (info === undefined) throw stateNotFound(address.digest);
    return { ...info, mediaType: '' };
  }
  const { trajectoryId, stepNumber, name } = address;
  const trajectory = await findTrajectory(app, caller, trajectoryId);
  const { owner, step } = await stepAt(app, caller, trajectory, { stepNumber }, 'BASIC');
  const state = step.states.find((each) => each.name === name);
  if (state === undefined) throw stepWithoutState(address, step.states);
  if (!isKept(state)) throw statePruned(address, state);
  return { ...state, step: { trajectory, owner, stepNumber, name } };
}

/**
 * Returns bytes [from, to) of a found state, as `stateBytes` does. Small states are read from the row of the step (S1).
 * Errors: STEP_CORRUPT, STATE_CORRUPT; if the state or its trajectory was deleted meanwhile: STATE_NOT_FOUND,
 * STATE_PRUNED or TRAJECTORY_NOT_FOUND.
 */
export async function* contentBytes(
  { app, caller }: Access,
  found: Omit<FoundContent, 'mediaType'>,
  from = 0,
  to = found.size,
): AsyncGenerator<Uint8Array, void, undefined> {
  try {
    const data = await smallData({ app, caller }, found);
    const read = data === undefined ? rowReader(app.store, caller.namespace, found) : smallReader(data);
    yield* stateBytes(read, found, from, to);
  } catch (error) {
    if (found.step === undefined || !isMissing(error)) throw error;
    // A step's states live as long as the step, unless they are pruned: else the store has lost one.
    const { trajectory, stepNumber, name } = found.step;
    await requireStillThere(app, caller, trajectory);
    await findContent({ app, caller }, { trajectoryId: trajectory.id, stepNumber, name });
    throw stateCorrupt(found.digest);
  }
}

/** Returns the bytes of a state that is stored in the row of its step. */
async function smallData(
  access: Access,
  { size, step }: Omit<FoundContent, 'mediaType'>,
): Promise<Uint8Array | undefined> {
  if (step === undefined) return undefined;
  return (await readSmall(access, step, [{ name: step.name, size }])).get(step.name);
}

/** Reads all those states of a step that are stored in its row, in one statement. */
async function readSmall(
  { app, caller }: Access,
  { trajectory, owner, stepNumber }: Omit<StateStep, 'name'>,
  states: readonly Pick<StateRef, 'name' | 'size'>[],
): Promise<ReadonlyMap<string, Uint8Array>> {
  const small = states.filter(({ size }) => size < LIMITS.smallStateBytes);
  if (small.length === 0) return new Map();
  const place = { tree: trajectory.ref.tree, owner: owner.key, stepNumber };
  const names = small.map(({ name }) => name);
  return app.store.readSmallStates(caller.namespace, place, names);
}

/**
 * Returns all bytes of some states of a step, by name. All must fit into a message together. Errors: as `contentBytes`.
 */
export async function wholeStates(
  access: Access,
  trajectory: Trajectory,
  { owner, step }: OwnedStep,
  states: readonly StateRef[],
): Promise<ReadonlyMap<string, Uint8Array>> {
  const place = { trajectory, owner, stepNumber: step.stepNumber };
  const found = new Map(await readSmall(access, place, states));
  for (const state of states) {
    if (found.has(state.name)) continue;
    const pieces: Uint8Array[] = [];
    for await (const piece of contentBytes(access, { ...state, step: { ...place, name: state.name } }))
      pieces.push(piece);
    found.set(state.name, pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces));
  }
  return found;
}

/** S13: the error for a pruned state of a step. */
export function statePruned(
  { trajectoryId, stepNumber }: { readonly trajectoryId: string; readonly stepNumber: bigint },
  { name, digest, prunedTime = 0n }: StateRef,
): AnabranchError {
  const time = formatInstant(prunedTime);
  return new AnabranchError(
    'STATE_PRUNED',
    `Retention removed the state "${name}" of step ${stepNumber} of trajectory ${trajectoryId} at ${time}: read a step that has its state (ListSteps with has_state), or attach the same bytes again (AttachState).`,
    {
      metadata: { trajectory_id: trajectoryId, step_number: `${stepNumber}`, name, digest, pruned_time: time },
    },
  );
}

function stepWithoutState(
  { trajectoryId, stepNumber, name }: Extract<StateAddress, { readonly name: string }>,
  states: readonly { readonly name: string }[],
): AnabranchError {
  const names = states.map((state) => `"${state.name}"`).join(', ');
  return new AnabranchError(
    'STATE_NOT_FOUND',
    `Step ${stepNumber} of trajectory ${trajectoryId} has no state "${shorten(name)}": its states are ${names || 'none'}.`,
    { metadata: { trajectory_id: trajectoryId, step_number: `${stepNumber}`, name: shorten(name) } },
  );
}
