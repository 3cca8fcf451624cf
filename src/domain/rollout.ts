import type { Instant } from './instant.ts';
import type { Status } from './lifecycle.ts';
import type { TimeSpan } from './run.ts';

/**
 * The store assigns row keys of groups, rollouts and environments, and never uses a key again. In JSON fields, empty
 * text means absent.
 */

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
  /** By type. */
  readonly validators: ReadonlyMap<string, Validator>;
  readonly createTime: Instant;
  readonly updateTime: Instant;
}

export interface Validator {
  readonly id: string;
  readonly query: string;
  readonly method: string;
  readonly expectedResult: string;
  readonly configJson: string;
  readonly advisory: boolean;
  readonly createTime: Instant;
  readonly updateTime: Instant;
}

export type OnSuccess = 'CONTINUE' | 'CANCEL_PENDING';

/** Fields of a group that its creation sets and updates change. */
export interface GroupSettings {
  readonly batch: bigint | undefined;
  readonly onSuccess: OnSuccess;
  readonly labels: ReadonlyMap<string, string>;
  readonly metadataJson: string;
}

export interface Group extends GroupSettings {
  readonly key: bigint;
  readonly id: string;
  readonly run: { readonly key: bigint; readonly id: string };
  readonly stage: { readonly key: bigint; readonly id: string };
  readonly number: bigint;
  readonly metrics: ReadonlyMap<string, number>;
  readonly statistics: GroupStatistics;
  readonly createTime: Instant;
  readonly updateTime: Instant;
  readonly revision: bigint;
}

export interface GroupStatistics {
  readonly pending: bigint;
  /** Rollouts that were claimed at least once, whatever their status is now. */
  readonly started: bigint;
  /** INITIALIZING or RUNNING. */
  readonly live: bigint;
  readonly completed: bigint;
  readonly failed: bigint;
  readonly cancelled: bigint;
  /** Rollouts that are COMPLETED with a verdict or FAILED; and those of them that are COMPLETED and succeeded. */
  readonly judged: bigint;
  readonly successes: bigint;
  /** Rewards of terminal rollouts, without unset and NaN rewards. */
  readonly rewards: RewardStatistics;
  readonly best: { readonly rolloutId: string; readonly reward: number } | undefined;
}

interface RewardStatistics {
  readonly count: bigint;
  /** Undefined without rewards. */
  readonly mean: number | undefined;
  /** Standard deviation of the sample. Undefined below two rewards. */
  readonly std: number | undefined;
}

/** L4: returns the status of a group, which follows from its rollouts. An empty group is PENDING. */
export function groupStatus({ pending, started, live, completed, failed, cancelled }: GroupStatistics): Status {
  if (live > 0n || pending > 0n) return started > 0n ? 'RUNNING' : 'PENDING';
  if (completed > 0n) return 'COMPLETED';
  if (failed > 0n) return 'FAILED';
  return cancelled > 0n ? 'CANCELLED' : 'PENDING';
}

/** Fields of a rollout that its creation sets and updates change. */
export interface RolloutSettings {
  readonly labels: ReadonlyMap<string, string>;
  readonly priority: number;
  readonly maxTurns: bigint | undefined;
  readonly maxAttempts: number;
  readonly modelUri: string;
  readonly metadataJson: string;
}

export interface Rollout extends RolloutSettings {
  readonly key: bigint;
  readonly id: string;
  readonly run: { readonly key: bigint; readonly id: string };
  readonly stage: { readonly key: bigint; readonly id: string };
  readonly group: { readonly key: bigint; readonly id: string; readonly number: bigint };
  readonly number: bigint;
  readonly taskId: string;
  readonly inputJson: string;
  /** Attempts that do not count towards `maxAttempts`. */
  readonly refundedAttempts: number;
  /** Undefined: no bound. */
  readonly attemptTimeoutMs: number | undefined;
  readonly retryDelayMs: number;
  readonly startFrom: StartPoint | undefined;
  readonly status: Status;
  readonly statusMessage: string;
  readonly phase: string;
  /** 0 before the first claim. */
  readonly attempt: number;
  /** Trajectory of the current attempt. Empty before the first claim, or if the trajectory was deleted. */
  readonly trajectoryId: string;
  /** Own steps of that trajectory without the root. */
  readonly turns: bigint;
  readonly workerId: string;
  /** Undefined if no worker holds the rollout, and while its run is paused. */
  readonly leaseEndTime: Instant | undefined;
  /** Time from which the rollout can be claimed. Undefined unless it is PENDING. */
  readonly claimableTime: Instant | undefined;
  readonly result: RolloutResult | undefined;
  readonly validationPassed: boolean | undefined;
  readonly override: ValidationOverride | undefined;
  readonly success: boolean | undefined;
  readonly reward: number | undefined;
  readonly metrics: ReadonlyMap<string, number>;
  readonly timings: ReadonlyMap<string, TimeSpan>;
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

/**
 * One try at a rollout, with everything that belongs to it. A rollout shows its last begun attempt, unless it is
 * PENDING.
 */
export interface Attempt {
  readonly number: number;
  /** Empty if it was deleted. */
  readonly trajectoryId: string;
  readonly status: Status;
  readonly message: string;
  readonly workerId: string;
  readonly claimTime: Instant;
  /** Time when it became RUNNING. */
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
  readonly result: RolloutResult | undefined;
  /** Sorted by name. */
  readonly validations: readonly Validation[];
  /** The override in effect. */
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
  /** Unique within the attempt: the type of a validator of the rollout's task, or a free name. */
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

/** A validation as a worker reports it. */
export type ReportedValidation = Omit<Validation, 'attempt' | 'validatorId' | 'recordTime'>;

export interface ValidationOverride {
  readonly ordinal: bigint;
  /** The judged attempt. */
  readonly attempt: number;
  /** Undefined: withdraws earlier overrides. */
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

/** Returns the attempt that a rollout shows: the last one that began, or undefined while the rollout is PENDING. */
export function shownAttempt(
  rollout: Pick<Rollout, 'status' | 'attempt'>,
  attempts: readonly Attempt[],
): Attempt | undefined {
  if (rollout.status === 'PENDING') return undefined;
  return attempts.find(({ number }) => number === rollout.attempt);
}

/** M3: returns whether all deciding validations succeeded, or undefined if none decides. */
export function validationPassed(
  validations: readonly Pick<Validation, 'advisory' | 'success'>[],
): boolean | undefined {
  const deciding = validations.filter(({ advisory }) => !advisory);
  return deciding.length === 0 ? undefined : deciding.every(({ success }) => success);
}

/**
 * M3: returns the verdict of an attempt: of its override, else of its validations, else of its result. Undefined: no
 * verdict.
 */
export function verdict(judged: {
  readonly override: boolean | undefined;
  readonly validationPassed: boolean | undefined;
  readonly result: boolean | undefined;
}): boolean | undefined {
  return judged.override ?? judged.validationPassed ?? judged.result;
}

/**
 * M3: returns whether a rollout succeeded, by the verdict of its last attempt. A FAILED rollout never succeeds,
 * whatever its verdict.
 */
export function rolloutSuccess(status: Status, attemptVerdict: boolean | undefined): boolean | undefined {
  return status === 'FAILED' ? false : attemptVerdict;
}

export const ROLLOUT_VERBS = ['start', 'complete', 'fail', 'cancel', 'release', 'retry'] as const;
export type RolloutVerb = (typeof ROLLOUT_VERBS)[number];

const LIVE: readonly Status[] = ['INITIALIZING', 'RUNNING'];

/**
 * L3: the moves of rollouts. A claim is not a verb of this table. `release` is the Requeue of L3: at the last attempt
 * it leads to FAILED (Q3).
 */
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
 * Returns the status after a requeue (Q3). The last counted attempt leads to FAILED. After a sibling's success under
 * CANCEL_PENDING, the rollout is CANCELLED. `countedAttempts` excludes refunded attempts.
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

/**
 * Returns how long a rollout waits after its n-th counted attempt before it can be claimed again (Q3), in milliseconds.
 */
export function retryDelayAfter(countedAttempts: number, retryDelayMs: number): number {
  return Math.min(retryDelayMs * 2 ** (countedAttempts - 1), LONGEST_RETRY_DELAY_MS);
}

/** Computes statistics in two passes for precision: first the mean, then the squares around it. */
export function rewardStatistics(rewards: readonly number[]): RewardStatistics {
  const known = rewards.filter((reward) => !Number.isNaN(reward));
  const count = BigInt(known.length);
  if (known.length === 0) return { count, mean: undefined, std: undefined };
  const mean = known.reduce((sum, reward) => sum + reward, 0) / known.length;
  if (known.length === 1) return { count, mean, std: undefined };
  const squares = known.reduce((sum, reward) => sum + (reward - mean) ** 2, 0);
  return { count, mean, std: Math.sqrt(squares / (known.length - 1)) };
}
