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
import type { View } from '../../store/contract/request.ts';
import { messageOf, sizerOf } from '../answer/message.ts';
import { fromInstant, fromMap, fromMillis, fromStatus, fromTimings } from '../convert/values.ts';

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

function fromResult({ errors, summaryJson, ...fields }: RolloutResult, view: View): WireResult {
  const summary = view === 'FULL' ? summaryJson : '';
  return messageOf(RolloutResultSchema, { ...fields, errors: [...errors], summaryJson: summary });
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

/** BASIC omits fields with JSON (FM7). BARE omits all fields that can be large. */
export function fromValidation(
  rolloutId: string,
  { executionMs, recordTime, ...fields }: Validation,
  form: View | 'BARE',
): WireValidation {
  return messageOf(ValidationSchema, {
    ...fields,
    ...(form === 'BARE' ? { query: '', expectedResult: '', actualResult: '' } : {}),
    rolloutId,
    executionDuration: executionMs === undefined ? undefined : fromMillis(executionMs),
    detailsJson: form === 'FULL' ? fields.detailsJson : '',
    recordTime: fromInstant(recordTime),
  });
}

export function fromOverride({ overrideTime, ...fields }: ValidationOverride): WireOverride {
  return messageOf(ValidationOverrideSchema, { ...fields, overrideTime: fromInstant(overrideTime) });
}
