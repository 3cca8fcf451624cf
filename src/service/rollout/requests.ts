import type { RolloutResult as WireResult } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import {
  type CompleteRolloutRequest,
  type CreateRolloutsRequest,
  type FailRolloutRequest,
  type Lease,
  type ListRolloutsRequest,
  type ReleaseRolloutRequest,
  type UpdateRolloutRequest,
  UpdateRolloutRequestSchema,
  type NewRollout as WireRollout,
  type NewValidation as WireValidation,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { OnSuccess, RolloutResult } from '../../domain/rollout.ts';
import type {
  AttemptReport,
  LeaseToken,
  NewRollout,
  NewValidation,
  RolloutChanges,
  RolloutEnd,
  RolloutFilter,
  RolloutMoveDetails,
} from '../../store/contract/rollout.ts';
import { maskedFields } from '../convert/mask.ts';
import {
  requireDistinct,
  required,
  setFilters,
  toBound,
  toInstant,
  toMap,
  toMillis,
  toStatuses,
  toTimings,
} from '../convert/values.ts';
import { toOnSuccess } from '../group/group.ts';

const DEFAULT_ATTEMPTS = 3;

/** Errors: INVALID_REQUEST (also if the mask names the phase, which only the worker sets, and no attempt is set). */
export function toRolloutChanges(request: UpdateRolloutRequest): RolloutChanges {
  const changes = maskedFields(UpdateRolloutRequestSchema, request, {
    labels: toMap,
    maxAttempts: (attempts) => attempts || DEFAULT_ATTEMPTS,
    metrics: toMap,
    timings: toTimings,
    environmentIds: (ids) => [...new Set(ids)],
  });
  if (changes.phase !== undefined && request.attempt === undefined) {
    throw invalidField('attempt', 'must be set to update `phase`: only the attempt that holds the rollout sets it');
  }
  return changes;
}

/** Errors: INVALID_REQUEST if no filter limits the list. */
export function toRolloutFilter(request: ListRolloutsRequest): RolloutFilter {
  const { taskId, workerId, minReward, maxReward, success } = request;
  const of = toOwner(request);
  if (of === undefined && taskId === '' && workerId === '') {
    throw invalidField('run_id', 'none of run_id, stage_id, group_id, task_id and worker_id is set: set at least one');
  }
  const filter = setFilters({
    of,
    taskId,
    workerId,
    statuses: toStatuses(request.statuses),
    labels: toMap(request.labels),
    minReward: toBound(minReward, 'min_reward'),
    maxReward: toBound(maxReward, 'max_reward'),
    createTimeFrom: toInstant(request.createTimeFrom),
    createTimeTo: toInstant(request.createTimeTo),
  });
  return success === undefined ? filter : { ...filter, success };
}

/** Returns the owner of the rollouts; the rules of the proto allow at most one. */
function toOwner({ runId, stageId, groupId }: ListRolloutsRequest): RolloutFilter['of'] {
  if (runId !== '') return { runId };
  if (stageId !== '') return { stageId };
  return groupId === '' ? undefined : { groupId };
}

/** Fields that all verbs of rollouts share. */
export interface MoveDetailsRequest {
  readonly message: string;
  readonly metadataJson: string;
  readonly phase?: string | undefined;
}

export function toMoveDetails({ message, metadataJson, phase }: MoveDetailsRequest): RolloutMoveDetails {
  return { message, metadataJson, ...(phase === undefined ? {} : { phase }) };
}

export function tokenOf({ rolloutId, attempt }: Pick<Lease, 'rolloutId' | 'attempt'>): LeaseToken {
  return { id: rolloutId, attempt };
}

/** Returns the result; undefined if it is unset. Errors: INVALID_REQUEST if its errors have too many bytes. */
function toResult(result: WireResult | undefined): RolloutResult | undefined {
  if (result === undefined) return undefined;
  const { reward, taskCompleted, agentReportedSuccess, success, errors, summaryJson } = result;
  const bytes = errors.reduce((sum, error) => sum + Buffer.byteLength(error), 0);
  if (bytes > LIMITS.resultErrorBytes) {
    throw invalidField('result.errors', `must have at most ${LIMITS.resultErrorBytes} bytes together, not ${bytes}`);
  }
  return { reward, taskCompleted, agentReportedSuccess, success, errors, summaryJson };
}

/** What a worker sends at the end of an attempt. */
export type AttemptEnd = Omit<RolloutEnd, 'id' | 'status' | 'details'>;

export const NO_END: AttemptEnd = Object.freeze({
  attempt: undefined,
  result: undefined,
  expectedNextStepNumber: undefined,
  validations: [],
  metrics: new Map(),
  timings: new Map(),
});

export function toEnd(request: CompleteRolloutRequest | FailRolloutRequest): AttemptEnd {
  const expectedNextStepNumber = 'expectedNextStepNumber' in request ? request.expectedNextStepNumber : undefined;
  return { attempt: request.attempt, result: toResult(request.result), expectedNextStepNumber, ...toReport(request) };
}

/** Errors: INVALID_REQUEST for two validations with the same name. */
export function toReport(request: Pick<ReleaseRolloutRequest, 'validations' | 'metrics' | 'timings'>): AttemptReport {
  const validations = request.validations.map((each, i) => toNewValidation(each, `validations[${i}]`));
  requireDistinct(
    validations,
    ({ name }) => [name],
    'validations[].name',
    ({ name }) =>
      `must be unique, but ${JSON.stringify(name)} occurs twice: an attempt has one validation of each name`,
  );
  return { validations, metrics: toMap(request.metrics), timings: toTimings(request.timings) };
}

export function toNewValidation(validation: WireValidation, field: string): NewValidation {
  const { name, advisory, query, expectedResult, actualResult, errorMessage, detailsJson } = validation;
  return {
    name,
    success: required(validation.success, `${field}.success`),
    advisory,
    query,
    expectedResult,
    actualResult,
    executionMs: toMillis(validation.executionDuration),
    errorMessage,
    detailsJson,
  };
}

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
