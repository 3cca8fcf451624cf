import type { StateReference } from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { AnabranchError, stateNotFound } from '../../domain/errors.ts';
import { type Digest, parseDigest, shorten } from '../../domain/ids.ts';
import { DEFAULT_STATE_NAME } from '../../domain/step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import { findTrajectory, requireStillThere } from '../../stream/find.ts';
import { required } from '../convert/required.ts';
import type { Call } from '../method.ts';
import { stepAt } from '../trajectory/find_step.ts';
import { isMissing, stateBytes, stateCorrupt } from './bytes.ts';

/** Identifies a state by the digest of its bytes, or by its name at an own or inherited step. */
export type StateAddress =
  | { readonly digest: Digest }
  | { readonly trajectoryId: string; readonly stepNumber: bigint; readonly name: string };

/** A stored state. */
export interface FoundContent extends StateInfo {
  /** Media type that the step gives the state. Empty for a state that was requested by its digest. */
  readonly mediaType: string;
  /** The trajectory of the reference. Undefined for a state that was requested by its digest. */
  readonly trajectory?: Trajectory;
}

/** What is needed to look up a state, and to read its bytes. */
type Access = Pick<Call, 'app' | 'caller'>;

/** Converts the two fields of a request of which exactly one is set. Errors: INVALID_REQUEST. */
export function addressOf(digest: string, reference: StateReference | undefined, field = 'digest'): StateAddress {
  if (reference === undefined) return { digest: parseDigest(digest, field) };
  const { trajectoryId, stepNumber, name } = reference;
  return {
    trajectoryId,
    stepNumber: required(stepNumber, 'step_number'),
    name: name || DEFAULT_STATE_NAME,
  };
}

/** Looks up a state. Errors: STATE_NOT_FOUND, TRAJECTORY_NOT_FOUND, STEP_NOT_FOUND. */
export async function findContent({ app, caller }: Access, address: StateAddress): Promise<FoundContent> {
  if ('digest' in address) {
    const [info] = await app.store.findStates(caller.namespace, [address.digest], false);
    if (info === undefined) throw stateNotFound(address.digest);
    return { ...info, mediaType: '' };
  }
  const { trajectoryId, stepNumber, name } = address;
  const trajectory = await findTrajectory(app, caller, trajectoryId);
  const { step } = await stepAt(app, caller, trajectory, { stepNumber }, 'BASIC');
  const state = step.states.find((each) => each.name === name);
  if (state === undefined) throw stepWithoutState(address, step.states);
  return { ...state, trajectory };
}

/**
 * Returns bytes [from, to) of a found state, as `stateBytes` does. Errors: STATE_CORRUPT; if the state or its
 * trajectory was deleted meanwhile: STATE_NOT_FOUND or TRAJECTORY_NOT_FOUND.
 */
export async function* contentBytes(
  { app, caller }: Access,
  found: Omit<FoundContent, 'mediaType'>,
  from = 0,
  to = found.size,
): AsyncGenerator<Uint8Array, void, undefined> {
  try {
    yield* stateBytes(app.store, caller.namespace, found, from, to);
  } catch (error) {
    if (found.trajectory === undefined || !isMissing(error)) throw error;
    // A step's states live as long as the step: either both are gone, or the store has lost one.
    await requireStillThere(app, caller, found.trajectory);
    throw stateCorrupt(found.digest);
  }
}

/** Returns all bytes of a small state. */
export async function wholeContent(access: Access, found: Omit<FoundContent, 'mediaType'>): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  for await (const piece of contentBytes(access, found)) pieces.push(piece);
  return pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces);
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
