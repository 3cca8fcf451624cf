import type { RolloutResult as WireResult } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import type {
  ClaimRolloutsRequest,
  Lease,
  ListRolloutsRequest,
  ReleaseRolloutRequest,
  UpdateRolloutRequest,
  NewRollout as WireRollout,
  NewValidation as WireValidation,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import type { ClaimRolloutsArgs } from '../../app/rollout/claim.ts';
import type { NewRolloutArgs } from '../../app/rollout/create.ts';
import type { ListRolloutsArgs } from '../../app/rollout/list.ts';
import { invalidField } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { RolloutResult } from '../../domain/rollout.ts';
import type {
  AttemptReport,
  LeaseToken,
  NewValidation,
  RolloutChanges,
  RolloutSaid,
} from '../../store/contract/rollout.ts';
import { toMillis } from '../convert/duration.ts';
import { maskedFields } from '../convert/mask.ts';
import { required } from '../convert/place.ts';
import { toTimings } from '../convert/timings.ts';
import { toInstant, toMap, toStatuses } from '../convert/values.ts';
import { toOnSuccess } from '../group/group.ts';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

const DEFAULT_ATTEMPTS = 3;
const DEFAULT_LEASE_MS = 60_000;
const DEFAULT_RETRY_DELAY_MS = 1000;

export function toNewRollout(rollout: WireRollout, index: number): NewRolloutArgs {
  const { rolloutId, taskId, inputJson, priority, maxTurns, maxAttempts, startFrom, modelUri, metadataJson } = rollout;
  const field = `rollouts[${index}]`;
  return {
    rolloutId,
    groupNumber: required(rollout.groupNumber, `${field}.group_number`),
    number: required(rollout.number, `${field}.number`),
    taskId,
    labels: toMap(rollout.labels),
    inputJson,
    priority,
    maxTurns,
    maxAttempts: maxAttempts || DEFAULT_ATTEMPTS,
    attemptTimeoutMs: toMillis(rollout.attemptTimeout),
    retryDelayMs: toMillis(rollout.retryDelay) ?? DEFAULT_RETRY_DELAY_MS,
    startFrom: startFrom && {
      trajectoryId: startFrom.trajectoryId,
      stepNumber: required(startFrom.stepNumber, `${field}.start_from.step_number`),
    },
    modelUri,
    metadataJson,
    onSuccess: toOnSuccess(rollout.onSuccess),
  };
}

export function toClaimArgs(request: ClaimRolloutsRequest): Omit<ClaimRolloutsArgs, 'signal' | 'key'> {
  const { runId, stageId, taskIds, minPriority, maxRollouts, workerId } = request;
  return {
    runId,
    stageId,
    taskIds,
    labels: toMap(request.labels),
    minPriority,
    maxRollouts: Math.max(1, maxRollouts),
    workerId,
    leaseMs: toMillis(request.leaseDuration) ?? DEFAULT_LEASE_MS,
    waitMs: toMillis(request.wait) ?? 0,
  };
}

export function toRolloutChanges(request: UpdateRolloutRequest): RolloutChanges {
  const { updateMask, priority, maxTurns, modelUri, statusMessage, metadataJson } = request;
  return maskedFields(updateMask, {
    labels: toMap(request.labels),
    priority,
    maxTurns,
    maxAttempts: request.maxAttempts || DEFAULT_ATTEMPTS,
    modelUri,
    statusMessage,
    metrics: toMap(request.metrics),
    timings: toTimings(request.timings),
    metadataJson,
    environmentIds: [...new Set(request.environmentIds)],
  });
}

export function toRolloutFilter(request: ListRolloutsRequest): ListRolloutsArgs['filter'] {
  const filter: Mutable<ListRolloutsArgs['filter']> = {};
  const of = toPlace(request);
  if (of !== undefined) filter.of = of;
  if (request.taskId !== '') filter.taskId = request.taskId;
  if (request.statuses.length > 0) filter.statuses = toStatuses(request.statuses);
  const labels = toMap(request.labels);
  if (labels.size > 0) filter.labels = labels;
  if (request.minReward !== undefined) filter.minReward = request.minReward;
  if (request.maxReward !== undefined) filter.maxReward = request.maxReward;
  if (request.success !== undefined) filter.success = request.success;
  if (request.workerId !== '') filter.workerId = request.workerId;
  const from = toInstant(request.createTimeFrom);
  const to = toInstant(request.createTimeTo);
  if (from !== undefined) filter.createTimeFrom = from;
  if (to !== undefined) filter.createTimeTo = to;
  return filter;
}

/** At most one of them is set. */
function toPlace({ runId, stageId, groupId }: ListRolloutsRequest): ListRolloutsArgs['filter']['of'] {
  if (runId !== '') return { runId };
  if (stageId !== '') return { stageId };
  return groupId === '' ? undefined : { groupId };
}

/** Fields that the verbs of rollouts share. */
export interface SaidRequest {
  readonly message: string;
  readonly metadataJson: string;
  readonly phase?: string | undefined;
}

export function toSaid({ message, metadataJson, phase }: SaidRequest): RolloutSaid {
  return { message, metadataJson, ...(phase === undefined ? {} : { phase }) };
}

export function tokenOf({ rolloutId, attempt }: Pick<Lease, 'rolloutId' | 'attempt'>): LeaseToken {
  return { id: rolloutId, attempt };
}

/** Returns the result; undefined if it is unset. Errors: INVALID_REQUEST if its errors have too many bytes. */
export function toResult(result: WireResult | undefined): RolloutResult | undefined {
  if (result === undefined) return undefined;
  const { reward, taskCompleted, agentReportedSuccess, success, errors, summaryJson } = result;
  const bytes = errors.reduce((sum, error) => sum + Buffer.byteLength(error), 0);
  if (bytes > LIMITS.resultErrorBytes) {
    throw invalidField('result.errors', `must have at most ${LIMITS.resultErrorBytes} bytes together, not ${bytes}`);
  }
  return { reward, taskCompleted, agentReportedSuccess, success, errors, summaryJson };
}

/** Errors: INVALID_REQUEST for two validations of one name. */
export function toReport(request: Pick<ReleaseRolloutRequest, 'validations' | 'metrics' | 'timings'>): AttemptReport {
  const validations = request.validations.map((each, i) => toNewValidation(each, `validations[${i}]`));
  requireDistinct(validations);
  return { validations, metrics: toMap(request.metrics), timings: toTimings(request.timings) };
}

/** Each name once. */
function requireDistinct(validations: readonly NewValidation[]): void {
  const seen = new Set<string>();
  for (const [i, { name }] of validations.entries()) {
    if (seen.has(name)) {
      const wanted = `must not be ${JSON.stringify(name)} again: an attempt has one validation of each name`;
      throw invalidField(`validations[${i}].name`, wanted);
    }
    seen.add(name);
  }
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
