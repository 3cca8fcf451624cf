import type { Instant } from './instant.ts';
import type { Outcome, Status } from './lifecycle.ts';
import type { TimeSpan } from './run.ts';

/** Row keys of groups, rollouts and environments are given by the store and never used again. Empty text means absent for fields that hold JSON. */

export interface Task {
  readonly key: bigint;
  readonly id: string;
  readonly name: string;
  readonly description: string;
  readonly difficulty: string;
  readonly category: string;
  readonly appName: string;
  readonly sourceType: string;
  readonly maxTurns: bigint | undefined;
  readonly tags: readonly string[];
  readonly prerequisites: readonly string[];
  readonly inputJson: string;
  readonly metadataJson: string;
  readonly createTime: Instant;
  readonly updateTime: Instant;
}

export interface Validator {
  readonly key: bigint;
  readonly id: string;
  readonly taskId: string;
  readonly type: string;
  readonly query: string;
  readonly method: string;
  readonly expectedResult: string;
  readonly configJson: string;
  readonly advisory: boolean;
  readonly createTime: Instant;
  readonly updateTime: Instant;
}

export type OnSuccess = 'CONTINUE' | 'CANCEL_PENDING';

export interface Group {
  readonly key: bigint;
  readonly id: string;
  readonly run: { readonly key: bigint; readonly id: string };
  readonly stage: { readonly key: bigint; readonly id: string };
  readonly number: bigint;
  readonly batch: bigint | undefined;
  readonly onSuccess: OnSuccess;
  readonly labels: ReadonlyMap<string, string>;
  readonly metrics: ReadonlyMap<string, number>;
  readonly metadataJson: string;
  readonly statistics: GroupStatistics;
  readonly createTime: Instant;
  readonly updateTime: Instant;
  readonly revision: bigint;
}

export interface GroupStatistics {
  readonly pending: bigint;
  /** Those that were claimed at least once, whatever they are now. */
  readonly started: bigint;
  /** INITIALIZING or RUNNING. */
  readonly live: bigint;
  readonly completed: bigint;
  readonly failed: bigint;
  readonly cancelled: bigint;
  /** COMPLETED ones with a verdict and FAILED ones, and the COMPLETED ones that succeeded. */
  readonly judged: bigint;
  readonly successes: bigint;
  /** Of terminal ones; missing and NaN ones are left out. */
  readonly rewards: RewardStatistics;
  readonly best: { readonly rolloutId: string; readonly reward: number } | undefined;
}

export interface RewardStatistics {
  readonly count: bigint;
  /** Undefined without one. */
  readonly mean: number | undefined;
  /** The sample's; undefined below two. */
  readonly std: number | undefined;
}

/** L4: a group's status is derived from its siblings'. A group without any is PENDING. */
export function groupStatus({ pending, started, live, completed, failed, cancelled }: GroupStatistics): Status {
  if (live > 0n || pending > 0n) return started > 0n ? 'RUNNING' : 'PENDING';
  if (completed > 0n) return 'COMPLETED';
  if (failed > 0n) return 'FAILED';
  return cancelled > 0n ? 'CANCELLED' : 'PENDING';
}

export interface Rollout {
  readonly key: bigint;
  readonly id: string;
  readonly run: { readonly key: bigint; readonly id: string };
  readonly stage: { readonly key: bigint; readonly id: string };
  readonly group: { readonly key: bigint; readonly id: string; readonly number: bigint };
  readonly number: bigint;
  readonly taskId: string;
  readonly labels: ReadonlyMap<string, string>;
  readonly inputJson: string;
  readonly priority: number;
  readonly maxTurns: bigint | undefined;
  readonly maxAttempts: number;
  /** Attempts that do not count towards `maxAttempts`. */
  readonly refundedAttempts: number;
  /** Undefined: no bound. */
  readonly attemptTimeoutMs: number | undefined;
  readonly retryDelayMs: number;
  readonly startFrom: StartPoint | undefined;
  readonly modelUri: string;
  readonly status: Status;
  readonly statusMessage: string;
  readonly phase: string;
  /** 0 before the first claim. */
  readonly attempt: number;
  /** The current attempt's; empty before the first claim, or where it was deleted. */
  readonly trajectoryId: string;
  /** Own steps of that trajectory that are not the root. */
  readonly turns: bigint;
  readonly workerId: string;
  /** Undefined if nobody holds it, and while its run is paused. */
  readonly leaseEndTime: Instant | undefined;
  /** From when on it can be claimed; undefined unless it is PENDING. */
  readonly claimableTime: Instant | undefined;
  readonly result: RolloutResult | undefined;
  readonly validationPassed: boolean | undefined;
  readonly override: ValidationOverride | undefined;
  readonly success: boolean | undefined;
  readonly reward: number | undefined;
  readonly metrics: ReadonlyMap<string, number>;
  readonly timings: ReadonlyMap<string, TimeSpan>;
  readonly metadataJson: string;
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
  readonly createTime: Instant;
  readonly updateTime: Instant;
  readonly revision: bigint;
}

export interface StartPoint {
  readonly trajectoryId: string;
  readonly stepNumber: bigint;
}

export interface RolloutResult {
  readonly reward: number | undefined;
  readonly taskCompleted: boolean | undefined;
  readonly agentReportedSuccess: boolean | undefined;
  readonly success: boolean | undefined;
  readonly errors: readonly string[];
  readonly summaryJson: string;
}

/** One try at a rollout, with all that belongs to it. The rollout shows the last one that began, unless it is PENDING. */
export interface Attempt {
  readonly number: number;
  /** Empty where it was deleted. */
  readonly trajectoryId: string;
  readonly status: Status;
  readonly message: string;
  readonly workerId: string;
  readonly claimTime: Instant;
  /** When it became RUNNING. */
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
  readonly result: RolloutResult | undefined;
  /** By type. */
  readonly validations: readonly Validation[];
  /** The override that stands. */
  readonly override: ValidationOverride | undefined;
  readonly success: boolean | undefined;
  readonly reward: number | undefined;
  readonly metrics: ReadonlyMap<string, number>;
  readonly timings: ReadonlyMap<string, TimeSpan>;
  readonly environmentIds: readonly string[];
}

export interface Validation {
  /** The attempt that was judged. */
  readonly attempt: number;
  /** Unique in the attempt: the type of a validator of the rollout's task, or a free name. */
  readonly name: string;
  /** Empty: the name is free. */
  readonly validatorId: string;
  readonly advisory: boolean;
  readonly success: boolean;
  readonly query: string;
  readonly expectedResult: string;
  readonly actualResult: string;
  readonly executionMs: number | undefined;
  readonly errorMessage: string;
  readonly detailsJson: string;
  readonly recordTime: Instant;
}

export interface ValidationOverride {
  readonly ordinal: bigint;
  /** The attempt that was judged; 0: the override was recorded before the first attempt, by an older version. */
  readonly attempt: number;
  /** Undefined: earlier ones are withdrawn. */
  readonly success: boolean | undefined;
  readonly reason: string;
  readonly actor: string;
  readonly overrideTime: Instant;
}

export interface Environment {
  readonly key: bigint;
  readonly id: string;
  readonly run: { readonly key: bigint; readonly id: string };
  readonly type: string;
  readonly externalId: string;
  readonly status: Status;
  readonly statusMessage: string;
  readonly phase: string;
  readonly labels: ReadonlyMap<string, string>;
  readonly configJson: string;
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
  readonly createTime: Instant;
  readonly updateTime: Instant;
}

/** The attempt that a rollout shows: the last one that began, undefined while the rollout is PENDING. */
export function shownAttempt(
  rollout: Pick<Rollout, 'status' | 'attempt'>,
  attempts: readonly Attempt[],
): Attempt | undefined {
  if (rollout.status === 'PENDING') return undefined;
  return attempts.find(({ number }) => number === rollout.attempt);
}

/** M3: whether the validations that decide all succeeded; undefined where none decides. */
export function validationPassed(
  validations: readonly Pick<Validation, 'advisory' | 'success'>[],
): boolean | undefined {
  const deciding = validations.filter(({ advisory }) => !advisory);
  return deciding.length === 0 ? undefined : deciding.every(({ success }) => success);
}

/** M3: the verdict of an attempt: an override's, else the validations', else the result's own; undefined: unjudged. */
export function verdict(judged: {
  readonly override: boolean | undefined;
  readonly validationPassed: boolean | undefined;
  readonly result: boolean | undefined;
}): boolean | undefined {
  return judged.override ?? judged.validationPassed ?? judged.result;
}

/** M3: whether a rollout succeeded, by the verdict of its last attempt. A FAILED rollout is never a success, whatever that says. */
export function rolloutSuccess(status: Status, attemptVerdict: boolean | undefined): boolean | undefined {
  return status === 'FAILED' ? false : attemptVerdict;
}

export const ROLLOUT_VERBS = ['start', 'complete', 'fail', 'cancel', 'release', 'retry'] as const;
export type RolloutVerb = (typeof ROLLOUT_VERBS)[number];

const LIVE: readonly Status[] = ['INITIALIZING', 'RUNNING'];

/** L3: the moves of rollouts; a claim is none of its verbs. `release` is L3's Requeue: at the last attempt it leads to FAILED (Q3). */
export const ROLLOUT_MOVES: Readonly<Record<RolloutVerb, { readonly from: readonly Status[]; readonly to: Status }>> =
  Object.freeze({
    start: { from: ['INITIALIZING'], to: 'RUNNING' },
    complete: { from: LIVE, to: 'COMPLETED' },
    fail: { from: LIVE, to: 'FAILED' },
    cancel: { from: ['PENDING', ...LIVE], to: 'CANCELLED' },
    release: { from: LIVE, to: 'PENDING' },
    retry: { from: ['FAILED', 'CANCELLED'], to: 'PENDING' },
  });

/**
 * What requeueing leads to (Q3): the last attempt that counts fails, and after a sibling's success under CANCEL_PENDING nothing is tried again.
 * `countedAttempts` leaves refunded ones out.
 */
export function requeued(
  countedAttempts: number,
  maxAttempts: number,
  onSuccess: OnSuccess,
  siblingSucceeded: boolean,
): 'PENDING' | 'FAILED' | 'CANCELLED' {
  if (onSuccess === 'CANCEL_PENDING' && siblingSucceeded) return 'CANCELLED';
  return countedAttempts >= maxAttempts ? 'FAILED' : 'PENDING';
}

const LONGEST_RETRY_DELAY_MS = 5 * 60_000;

/** How long a rollout waits to be claimed after its n-th counted attempt (Q3), in milliseconds. */
export function retryDelayAfter(countedAttempts: number, retryDelayMs: number): number {
  return Math.min(retryDelayMs * 2 ** (countedAttempts - 1), LONGEST_RETRY_DELAY_MS);
}

/** What is compared when a terminal verb comes again (L5): message and result. */
export function rolloutOutcome(message: string, result: RolloutResult | undefined): Outcome {
  if (result === undefined) return { message, resultJson: '' };
  const { reward, taskCompleted, agentReportedSuccess, success, errors, summaryJson } = result;
  const number = reward === undefined ? null : `${Object.is(reward, -0) ? '-0' : reward}`;
  const parts = [number, taskCompleted ?? null, agentReportedSuccess ?? null, success ?? null, errors, summaryJson];
  return { message, resultJson: JSON.stringify(parts) };
}

/** Sums of terminal rollouts, exact enough: the mean first, then the squares around it. */
export function rewardStatistics(rewards: readonly number[]): RewardStatistics {
  const known = rewards.filter((reward) => !Number.isNaN(reward));
  const count = BigInt(known.length);
  if (known.length === 0) return { count, mean: undefined, std: undefined };
  const mean = known.reduce((sum, reward) => sum + reward, 0) / known.length;
  if (known.length === 1) return { count, mean, std: undefined };
  const squares = known.reduce((sum, reward) => sum + (reward - mean) ** 2, 0);
  return { count, mean, std: Math.sqrt(squares / (known.length - 1)) };
}
