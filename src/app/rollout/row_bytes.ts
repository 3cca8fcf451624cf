import type {
  Attempt,
  Rollout,
  RolloutResult,
  Task,
  Validation,
  ValidationOverride,
  Validator,
} from '../../domain/rollout.ts';
import type { BookView } from '../../store/contract/experiment.ts';
import { namesBytes, pairsBytes, sum, utf8 } from '../run/row_bytes.ts';

/** No fewer bytes than rows take when encoded: for answers that must stay below a limit (RD3). */

export function taskBytes(task: Task, view: BookView): number {
  const { id, name, description, difficulty, category, appName, sourceType, tags, prerequisites } = task;
  const bytes = 160 + sum([id, name, description, difficulty, category, appName, sourceType]);
  const words = 8 * (tags.length + prerequisites.length) + sum(tags) + sum(prerequisites);
  return bytes + words + (view === 'FULL' ? 16 + sum([task.inputJson, task.metadataJson]) : 0);
}

export function validatorBytes({ taskId, type, query, method, expectedResult, configJson }: Validator): number {
  return 192 + sum([taskId, type, query, method, expectedResult, configJson]);
}

export function rolloutBytes(rollout: Rollout, view: BookView): number {
  const { taskId, modelUri, statusMessage, phase, workerId, result, override } = rollout;
  let bytes = 704 + sum([taskId, modelUri, statusMessage, phase, workerId]);
  bytes += pairsBytes(rollout.labels) + namesBytes(rollout.metrics) + timingsBytes(rollout.timings);
  bytes += resultBytes(result, view);
  if (override !== undefined) bytes += overrideBytes(override);
  if (view === 'BASIC') return bytes;
  return bytes + 32 + sum([rollout.inputJson, rollout.metadataJson]);
}

export function timingsBytes(timings: Rollout['timings']): number {
  let bytes = 0;
  for (const name of timings.keys()) bytes += 64 + utf8(name);
  return bytes;
}

export function resultBytes(result: RolloutResult | undefined, view: BookView): number {
  if (result === undefined) return 0;
  const { errors, summaryJson } = result;
  return 40 + 8 * errors.length + sum(errors) + (view === 'FULL' ? utf8(summaryJson) : 0);
}

/** Without what `attemptFoundBytes` counts. */
export function attemptBytes({ message, workerId }: Attempt): number {
  return 160 + sum([message, workerId]);
}

/** Result, override, metrics, timings and environments of an attempt; its validations are counted one by one. */
export function attemptFoundBytes(attempt: Attempt, view: BookView): number {
  const { result, override, metrics, timings, environmentIds } = attempt;
  const named = namesBytes(metrics) + timingsBytes(timings) + 48 * environmentIds.length;
  return resultBytes(result, view) + (override === undefined ? 0 : overrideBytes(override)) + named;
}

export function validationBytes(validation: Validation): number {
  const { name, query, expectedResult, actualResult, errorMessage, detailsJson } = validation;
  return 192 + sum([name, query, expectedResult, actualResult, errorMessage, detailsJson]);
}

export function overrideBytes({ reason, actor }: ValidationOverride): number {
  return 64 + sum([reason, actor]);
}
