import { hash } from 'node:crypto';
import type { Digest } from './ids.ts';
import type { ReportedValidation, RolloutResult } from './rollout.ts';
import type { TimeSpan } from './run.ts';

/** The report of a request that completes, fails or releases a rollout. */
export interface EndReport {
  readonly message: string;
  readonly result: RolloutResult | undefined;
  readonly metrics: ReadonlyMap<string, number>;
  readonly timings: ReadonlyMap<string, TimeSpan>;
  readonly validations: readonly ReportedValidation[];
  readonly refundAttempt?: boolean;
}

/**
 * L5: returns the SHA-256 that tells whether an attempt was ended twice with the same report. The order of maps and
 * validations does not count. Numbers are compared by value, with one NaN and two zeros; texts are compared byte for
 * byte. Digests are stored, so the form must not change.
 */
export function endDigest({ message, result, metrics, timings, validations, refundAttempt }: EndReport): Digest {
  const form = [
    message,
    result === undefined ? null : resultForm(result),
    sorted([...metrics].map(([key, value]) => [key, numberForm(value)])),
    sorted([...timings].map(([name, { startTime, endTime }]) => [name, timeForm(startTime), timeForm(endTime)])),
    sorted(validations.map(validationForm)),
    ...(refundAttempt === true ? ['refund'] : []),
  ];
  return hash('sha256', JSON.stringify(form));
}

function resultForm(result: RolloutResult): unknown[] {
  const { reward, taskCompleted, agentReportedSuccess, success, errors, summaryJson } = result;
  const flags = [taskCompleted, agentReportedSuccess, success].map((flag) => flag ?? null);
  return [numberForm(reward), ...flags, errors, summaryJson];
}

function validationForm(validation: ReportedValidation): [string, ...unknown[]] {
  const { name, success, advisory, query, expectedResult, actualResult, executionMs, errorMessage, detailsJson } =
    validation;
  const texts = [query, expectedResult, actualResult, errorMessage, detailsJson];
  return [name, success, numberForm(executionMs), ...texts, advisory];
}

/** JSON cannot represent NaN, infinities and negative zero as numbers. */
function numberForm(value: number | undefined): string | null {
  if (value === undefined) return null;
  return Object.is(value, -0) ? '-0' : `${value}`;
}

function timeForm(time: bigint | undefined): string | null {
  return time === undefined ? null : `${time}`;
}

function sorted(entries: readonly [string, ...unknown[]][]): readonly unknown[] {
  return entries.toSorted(([a], [b]) => (a < b ? -1 : 1));
}
