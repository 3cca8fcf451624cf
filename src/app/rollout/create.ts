import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import type { OnSuccess } from '../../domain/rollout.ts';
import { tupleKey } from '../../domain/tuple_key.ts';
import type { CreatedRollout, NewRollout } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';

export interface NewRolloutArgs extends Omit<NewRollout, 'id' | 'groupId' | 'onSuccess'> {
  /** Empty: the server makes one. */
  readonly rolloutId: string;
  /** Of the group, if it is made; undefined: what others of the group in this call say, else CONTINUE. */
  readonly onSuccess: OnSuccess | undefined;
}

export interface CreateRolloutsArgs {
  readonly stageId: string;
  readonly rollouts: readonly NewRolloutArgs[];
}

/**
 * Q6: makes what is not there, all or none.
 * Errors: STAGE_NOT_FOUND, TASK_NOT_FOUND, TRAJECTORY_NOT_FOUND, BRANCH_POINT_BEYOND_END, ROLLOUT_EXISTS, ROLLOUT_CONFLICT, QUEUE_CLOSED.
 */
export async function createRollouts(app: App, caller: Caller, args: CreateRolloutsArgs): Promise<CreatedRollout[]> {
  requireDistinct(args.rollouts);
  const policies = policiesOf(args.rollouts);
  const groupIds = new Map<bigint, string>();
  const rollouts = args.rollouts.map(({ rolloutId, onSuccess: _, ...rollout }): NewRollout => {
    const groupId = groupIds.get(rollout.groupNumber) ?? app.ids.uuid();
    groupIds.set(rollout.groupNumber, groupId);
    return {
      ...rollout,
      id: rolloutId || app.ids.uuid(),
      groupId,
      onSuccess: policies.get(rollout.groupNumber) ?? 'CONTINUE',
    };
  });
  return app.store.createRollouts(caller, args.stageId, rollouts);
}

/** Each place in a group once, and each id. */
function requireDistinct(rollouts: readonly NewRolloutArgs[]): void {
  const places = new Set<string>();
  const ids = new Set<string>();
  for (const [i, { groupNumber, number, rolloutId }] of rollouts.entries()) {
    const place = tupleKey(groupNumber, number);
    if (places.has(place)) {
      throw invalidField(
        `rollouts[${i}].number`,
        `must be there once in group ${groupNumber}, but ${number} is there twice`,
      );
    }
    places.add(place);
    const id = rolloutId.toLowerCase();
    if (id !== '' && ids.has(id)) throw invalidField(`rollouts[${i}].rollout_id`, 'must be there once in a call');
    ids.add(id);
  }
}

/** One policy a group, whichever of its rollouts say it. */
function policiesOf(rollouts: readonly NewRolloutArgs[]): ReadonlyMap<bigint, OnSuccess> {
  const policies = new Map<bigint, OnSuccess>();
  for (const [i, { groupNumber, onSuccess }] of rollouts.entries()) {
    if (onSuccess === undefined) continue;
    const said = policies.get(groupNumber) ?? onSuccess;
    if (said !== onSuccess) {
      throw invalidField(`rollouts[${i}].on_success`, `must be the same for all of group ${groupNumber}`);
    }
    policies.set(groupNumber, onSuccess);
  }
  return policies;
}
