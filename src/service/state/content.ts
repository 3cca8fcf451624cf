import { AnabranchError, stateNotFound } from '../../domain/errors.ts';
import { type Digest, shorten } from '../../domain/ids.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import { findTrajectory } from '../../stream/find.ts';
import type { Call } from '../method.ts';
import { stepAt } from '../trajectory/find_step.ts';

/** Names a state: by the digest of its bytes, or as the state with a name of an own or inherited step. */
export type StateAddress =
  | { readonly digest: Digest }
  | { readonly trajectoryId: string; readonly stepNumber: bigint; readonly name: string };

/** A stored state. The media type is that of the step's reference; empty for a state that was named by its digest. */
export interface FoundContent extends StateInfo {
  readonly mediaType: string;
}

/** Errors: STATE_NOT_FOUND, TRAJECTORY_NOT_FOUND, STEP_NOT_FOUND. */
export async function findContent(call: Call, address: StateAddress): Promise<FoundContent> {
  if ('digest' in address) {
    const [info] = await call.app.store.findStates(call.caller.namespace, [address.digest], false);
    if (info === undefined) throw stateNotFound(address.digest);
    return { ...info, mediaType: '' };
  }
  const { trajectoryId, stepNumber, name } = address;
  const trajectory = await findTrajectory(call.app, call.caller, trajectoryId);
  const { step } = await stepAt(call.app, call.caller, trajectory, { stepNumber }, 'FULL');
  const state = step.states.find((each) => each.name === name);
  if (state === undefined) throw stepWithoutState(address, step.states);
  return state;
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
