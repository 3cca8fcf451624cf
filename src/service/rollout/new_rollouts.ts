import type {
  CreateRolloutsRequest,
  NewRollout as WireRollout,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { OnSuccess } from '../../domain/rollout.ts';
import type { NewRollout } from '../../store/contract/rollout.ts';
import { requireDistinct } from '../convert/distinct.ts';
import { toMillis } from '../convert/duration.ts';
import { required } from '../convert/required.ts';
import { toMap } from '../convert/values.ts';
import { toOnSuccess } from '../group/group.ts';
import { DEFAULT_ATTEMPTS } from './requests.ts';

const DEFAULT_RETRY_DELAY_MS = 1000;

/**
 * Requires a `request_id` where a repeated call would create or claim other rollouts (ID1). Errors: INVALID_REQUEST.
 */
export function requireRepeatable({ rollouts, claim, requestId }: CreateRolloutsRequest): void {
  if (claim !== undefined && rollouts.length > LIMITS.claimedRollouts) {
    throw invalidField(
      'rollouts',
      `must have at most ${LIMITS.claimedRollouts} items with \`claim\`, not ${rollouts.length}`,
    );
  }
  if (requestId !== '') return;
  if (claim !== undefined) throw invalidField('request_id', 'must be set with `claim`');
  if (rollouts.some(({ number }) => number === undefined)) {
    throw invalidField('request_id', 'must be set, because a rollout has no number');
  }
}

/** Errors: INVALID_REQUEST for two rollouts with the same number or id, and for a group with two policies. */
export function toNewRollouts(rollouts: readonly WireRollout[], newId: () => string): NewRollout[] {
  requireDistinct(
    rollouts,
    ({ groupNumber, number }) => (number === undefined ? undefined : [groupNumber, number]),
    'rollouts[].number',
    ({ groupNumber, number }) => `must be unique in group ${groupNumber}, but ${number} occurs twice`,
  );
  requireDistinct(rollouts, ({ rolloutId: id }) => (id === '' ? undefined : [id]), 'rollouts[].rollout_id');
  const policies = policiesOf(rollouts);
  const groupIds = new Map<bigint, string>();
  return rollouts.map(({ $typeName: _, $unknown: __, ...rollout }, i) => {
    const { rolloutId, number, attemptTimeout, retryDelay, startFrom, maxTurns, ...fields } = rollout;
    const field = `rollouts[${i}]`;
    const groupNumber = required(rollout.groupNumber, `${field}.group_number`);
    const groupId = groupIds.get(groupNumber) ?? newId();
    groupIds.set(groupNumber, groupId);
    return {
      ...fields,
      id: rolloutId || newId(),
      groupId,
      groupNumber,
      number,
      labels: toMap(rollout.labels),
      maxTurns,
      maxAttempts: rollout.maxAttempts || DEFAULT_ATTEMPTS,
      attemptTimeoutMs: toMillis(attemptTimeout),
      retryDelayMs: toMillis(retryDelay) ?? DEFAULT_RETRY_DELAY_MS,
      startFrom: startFrom && {
        trajectoryId: startFrom.trajectoryId,
        stepNumber: required(startFrom.stepNumber, `${field}.start_from.step_number`),
      },
      onSuccess: policies.get(groupNumber) ?? 'CONTINUE',
    };
  });
}

/** Returns the policies of groups. Any rollout of a group can set its policy. */
function policiesOf(rollouts: readonly WireRollout[]): ReadonlyMap<bigint | undefined, OnSuccess> {
  const policies = new Map<bigint | undefined, OnSuccess>();
  for (const [i, rollout] of rollouts.entries()) {
    const { groupNumber } = rollout;
    const onSuccess = toOnSuccess(rollout.onSuccess);
    if (onSuccess === undefined) continue;
    if ((policies.get(groupNumber) ?? onSuccess) !== onSuccess) {
      throw invalidField(`rollouts[${i}].on_success`, `must be the same for all rollouts of group ${groupNumber}`);
    }
    policies.set(groupNumber, onSuccess);
  }
  return policies;
}
