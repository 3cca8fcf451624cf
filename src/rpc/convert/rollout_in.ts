import type { RolloutResult as WireResult } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import type {
  ClaimRolloutsRequest,
  ListRolloutsRequest,
  ReleaseRolloutRequest,
  UpdateRolloutRequest,
  NewRollout as WireRollout,
  NewValidation as WireValidation,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import type { ClaimRolloutsArgs } from '../../app/rollout/claim.ts';
import type { NewRolloutArgs } from '../../app/rollout/create.ts';
import type { ListRolloutsArgs } from '../../app/rollout/list.ts';
import type { ReleaseRolloutArgs } from '../../app/rollout/move.ts';
import type { UpdateRolloutArgs } from '../../app/rollout/update.ts';
import type { RecordValidationArgs } from '../../app/rollout/validation.ts';
import type { RolloutResult } from '../../domain/rollout.ts';
import { toMillis } from '../../service/convert/duration.ts';
import { changesOf } from '../../service/convert/mask.ts';
import { required } from '../../service/convert/place.ts';
import { toTimings } from '../../service/convert/timings.ts';
import { toInstant, toMap, toStatuses } from '../../service/convert/values.ts';
import { toOnSuccess } from '../../service/group/group.ts';

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

export function toRolloutChanges(request: UpdateRolloutRequest): UpdateRolloutArgs['changes'] {
  return changesOf<UpdateRolloutArgs['changes']>(request.updateMask, {
    labels: () => ({ labels: toMap(request.labels) }),
    priority: () => ({ priority: request.priority }),
    max_turns: () => ({ maxTurns: request.maxTurns }),
    max_attempts: () => ({ maxAttempts: request.maxAttempts || DEFAULT_ATTEMPTS }),
    model_uri: () => ({ modelUri: request.modelUri }),
    status_message: () => ({ statusMessage: request.statusMessage }),
    metrics: () => ({ metrics: toMap(request.metrics) }),
    timings: () => ({ timings: toTimings(request.timings) }),
    metadata_json: () => ({ metadataJson: request.metadataJson }),
    environment_ids: () => ({ environmentIds: request.environmentIds }),
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

export function toResult(result: WireResult | undefined): RolloutResult | undefined {
  if (result === undefined) return undefined;
  const { reward, taskCompleted, agentReportedSuccess, success, errors, summaryJson } = result;
  return { reward, taskCompleted, agentReportedSuccess, success, errors, summaryJson };
}

export function toReport({
  validations,
  metrics,
  timings,
}: Pick<ReleaseRolloutRequest, 'validations' | 'metrics' | 'timings'>): ReleaseRolloutArgs['report'] {
  return {
    validations: validations.map((validation, i) => toNewValidation(validation, `validations[${i}]`)),
    metrics: toMap(metrics),
    timings: toTimings(timings),
  };
}

export function toNewValidation(validation: WireValidation, field: string): RecordValidationArgs['validation'] {
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
