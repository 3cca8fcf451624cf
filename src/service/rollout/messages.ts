import { create, type DescField, ScalarType } from '@bufbuild/protobuf';
import {
  AttemptSchema,
  RolloutResultSchema,
  RolloutSchema,
  StartPointSchema,
  ValidationOverrideSchema,
  ValidationSchema,
  type Attempt as WireAttempt,
  type ValidationOverride as WireOverride,
  type RolloutResult as WireResult,
  type Rollout as WireRollout,
  type Validation as WireValidation,
} from '../../../gen/es/anabranch/v1/rollout_pb.js';
import type { Attempt, Rollout, RolloutResult, Validation, ValidationOverride } from '../../domain/rollout.ts';
import type { View } from '../../store/contract/view.ts';
import { sizerOf } from '../answer/size.ts';
import { fromMillis } from '../convert/duration.ts';
import { fromTimings } from '../convert/timings.ts';
import { fromInstant, fromMap, fromStatus } from '../convert/values.ts';

export const rolloutBytes = sizerOf(RolloutSchema);
export const attemptBytes = sizerOf(AttemptSchema);
export const validationBytes = sizerOf(ValidationSchema);

/** BASIC omits fields with JSON (FM7). */
export function fromRollout(rollout: Rollout, view: View): WireRollout {
  const isFull = view === 'FULL';
  // A literal: `create` is slower for objects with many fields (see `fromRun`).
  const wire: WireRollout = {
    $typeName: 'anabranch.v1.Rollout',
    id: rollout.id,
    runId: rollout.run.id,
    stageId: rollout.stage.id,
    groupId: rollout.group.id,
    groupNumber: rollout.group.number,
    number: rollout.number,
    taskId: rollout.taskId,
    labels: fromMap(rollout.labels),
    inputJson: isFull ? rollout.inputJson : '',
    priority: rollout.priority,
    maxAttempts: rollout.maxAttempts,
    refundedAttempts: rollout.refundedAttempts,
    retryDelay: fromMillis(rollout.retryDelayMs),
    modelUri: rollout.modelUri,
    status: fromStatus(rollout.status),
    statusMessage: rollout.statusMessage,
    phase: rollout.phase,
    attempt: rollout.attempt,
    trajectoryId: rollout.trajectoryId,
    turns: rollout.turns,
    workerId: rollout.workerId,
    metrics: fromMap(rollout.metrics),
    timings: fromTimings(rollout.timings),
    metadataJson: isFull ? rollout.metadataJson : '',
    createTime: fromInstant(rollout.createTime),
    updateTime: fromInstant(rollout.updateTime),
    revision: rollout.revision,
  };
  if (rollout.maxTurns !== undefined) wire.maxTurns = rollout.maxTurns;
  if (rollout.startFrom !== undefined) wire.startFrom = create(StartPointSchema, rollout.startFrom);
  if (rollout.attemptTimeoutMs !== undefined) wire.attemptTimeout = fromMillis(rollout.attemptTimeoutMs);
  if (rollout.leaseEndTime !== undefined) wire.leaseEndTime = fromInstant(rollout.leaseEndTime);
  if (rollout.claimableTime !== undefined) wire.claimableTime = fromInstant(rollout.claimableTime);
  if (rollout.result !== undefined) wire.result = fromResult(rollout.result, view);
  if (rollout.validationPassed !== undefined) wire.validationPassed = rollout.validationPassed;
  if (rollout.override !== undefined) wire.override = fromOverride(rollout.override);
  if (rollout.success !== undefined) wire.success = rollout.success;
  if (rollout.reward !== undefined) wire.reward = rollout.reward;
  if (rollout.startTime !== undefined) wire.startTime = fromInstant(rollout.startTime);
  if (rollout.endTime !== undefined) wire.endTime = fromInstant(rollout.endTime);
  return wire;
}

/** Returns a rollout without the fields that can be large: texts other than ids, maps, and messages with texts. */
export function fromBareRollout(rollout: Rollout): WireRollout {
  const whole = fromRollout(rollout, 'BASIC');
  return create(RolloutSchema, Object.fromEntries(BARE_FIELDS.map((name) => [name, whole[name]])));
}

const BARE_FIELDS = RolloutSchema.fields
  .filter((field) => !canBeLarge(field))
  .map(({ localName }) => localName as keyof WireRollout);

function canBeLarge({ name, fieldKind, scalar, message }: DescField): boolean {
  if (scalar === ScalarType.STRING) return !/(^|_)id$/.test(name);
  return fieldKind === 'map' || message?.fields.some(canBeLarge) === true;
}

function fromResult(result: RolloutResult, view: View): WireResult {
  const { reward, taskCompleted, agentReportedSuccess, success } = result;
  const wire = create(RolloutResultSchema);
  if (reward !== undefined) wire.reward = reward;
  if (taskCompleted !== undefined) wire.taskCompleted = taskCompleted;
  if (agentReportedSuccess !== undefined) wire.agentReportedSuccess = agentReportedSuccess;
  if (success !== undefined) wire.success = success;
  wire.errors = [...result.errors];
  if (view === 'FULL') wire.summaryJson = result.summaryJson;
  return wire;
}

export function fromAttempt(rolloutId: string, attempt: Attempt, view: View): WireAttempt {
  const wire = fromBareAttempt(attempt);
  if (attempt.result !== undefined) wire.result = fromResult(attempt.result, view);
  wire.validations = attempt.validations.map((validation) => fromValidation(rolloutId, validation, view));
  wire.metrics = fromMap(attempt.metrics);
  wire.timings = fromTimings(attempt.timings);
  wire.environmentIds = [...attempt.environmentIds];
  if (attempt.override !== undefined) wire.override = fromOverride(attempt.override);
  return wire;
}

/** Without result, validations, metrics, timings, environments and override. */
export function fromBareAttempt(attempt: Attempt): WireAttempt {
  const { number, trajectoryId, status, message, workerId, claimTime, startTime, endTime, success, reward } = attempt;
  const wire = create(AttemptSchema, { number, trajectoryId, message, workerId });
  wire.status = fromStatus(status);
  wire.claimTime = fromInstant(claimTime);
  if (startTime !== undefined) wire.startTime = fromInstant(startTime);
  if (endTime !== undefined) wire.endTime = fromInstant(endTime);
  if (success !== undefined) wire.success = success;
  if (reward !== undefined) wire.reward = reward;
  return wire;
}

/** BASIC omits fields with JSON (FM7). */
export function fromValidation(rolloutId: string, validation: Validation, view: View): WireValidation {
  const wire = fromBareValidation(rolloutId, validation);
  wire.query = validation.query;
  wire.expectedResult = validation.expectedResult;
  wire.actualResult = validation.actualResult;
  if (view === 'FULL') wire.detailsJson = validation.detailsJson;
  return wire;
}

/** Without fields that can be large. */
export function fromBareValidation(rolloutId: string, validation: Validation): WireValidation {
  const wire = create(ValidationSchema);
  wire.rolloutId = rolloutId;
  wire.attempt = validation.attempt;
  wire.name = validation.name;
  wire.validatorId = validation.validatorId;
  wire.success = validation.success;
  wire.advisory = validation.advisory;
  if (validation.executionMs !== undefined) wire.executionDuration = fromMillis(validation.executionMs);
  wire.errorMessage = validation.errorMessage;
  wire.recordTime = fromInstant(validation.recordTime);
  return wire;
}

export function fromOverride(override: ValidationOverride): WireOverride {
  const { ordinal, attempt, success, reason, actor } = override;
  const wire = create(ValidationOverrideSchema, { ordinal, attempt, reason, actor });
  wire.overrideTime = fromInstant(override.overrideTime);
  if (success !== undefined) wire.success = success;
  return wire;
}
