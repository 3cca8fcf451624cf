import type { NewRollout as WireRollout } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import type { OnSuccess } from '../../domain/rollout.ts';
import { tupleKey } from '../../domain/tuple_key.ts';
import type { NewRollout } from '../../store/contract/rollout.ts';
import { toMillis } from '../convert/duration.ts';
import { required } from '../convert/place.ts';
import { toMap } from '../convert/values.ts';
import { toOnSuccess } from '../group/group.ts';
import { DEFAULT_ATTEMPTS } from './requests.ts';

const DEFAULT_RETRY_DELAY_MS = 1000;

/** Errors: INVALID_REQUEST for two rollouts of one number or id, and for a group with two policies. */
export function toNewRollouts(rollouts: readonly WireRollout[], newId: () => string): NewRollout[] {
  requireDistinct(rollouts);
  const policies = policiesOf(rollouts);
  const groupIds = new Map<bigint, string>();
  return rollouts.map((rollout, i) => {
    const { taskId, inputJson, priority, maxTurns, startFrom, modelUri, metadataJson } = rollout;
    const field = `rollouts[${i}]`;
    const groupNumber = required(rollout.groupNumber, `${field}.group_number`);
    const groupId = groupIds.get(groupNumber) ?? newId();
    groupIds.set(groupNumber, groupId);
    return {
      id: rollout.rolloutId || newId(),
      groupId,
      groupNumber,
      number: required(rollout.number, `${field}.number`),
      taskId,
      labels: toMap(rollout.labels),
      inputJson,
      priority,
      maxTurns,
      maxAttempts: rollout.maxAttempts || DEFAULT_ATTEMPTS,
      attemptTimeoutMs: toMillis(rollout.attemptTimeout),
      retryDelayMs: toMillis(rollout.retryDelay) ?? DEFAULT_RETRY_DELAY_MS,
      startFrom: startFrom && {
        trajectoryId: startFrom.trajectoryId,
        stepNumber: required(startFrom.stepNumber, `${field}.start_from.step_number`),
      },
      modelUri,
      metadataJson,
      onSuccess: policies.get(groupNumber) ?? 'CONTINUE',
    };
  });
}

/** Each number in a group once, and each id. */
function requireDistinct(rollouts: readonly WireRollout[]): void {
  const numbers = new Set<string>();
  const ids = new Set<string>();
  for (const [i, { groupNumber, number, rolloutId }] of rollouts.entries()) {
    const place = tupleKey(groupNumber, number);
    if (numbers.has(place)) {
      throw invalidField(
        `rollouts[${i}].number`,
        `must be there once in group ${groupNumber}, but ${number} is there twice`,
      );
    }
    numbers.add(place);
    if (rolloutId !== '' && ids.has(rolloutId)) {
      throw invalidField(`rollouts[${i}].rollout_id`, 'must be there once in a call');
    }
    ids.add(rolloutId);
  }
}

/** The policies of groups. Any of a group's rollouts may set it. */
function policiesOf(rollouts: readonly WireRollout[]): ReadonlyMap<bigint | undefined, OnSuccess> {
  const policies = new Map<bigint | undefined, OnSuccess>();
  for (const [i, rollout] of rollouts.entries()) {
    const { groupNumber } = rollout;
    const onSuccess = toOnSuccess(rollout.onSuccess);
    if (onSuccess === undefined) continue;
    if ((policies.get(groupNumber) ?? onSuccess) !== onSuccess) {
      throw invalidField(`rollouts[${i}].on_success`, `must be the same for all of group ${groupNumber}`);
    }
    policies.set(groupNumber, onSuccess);
  }
  return policies;
}
