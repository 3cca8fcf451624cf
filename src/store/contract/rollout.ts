import type { Caller } from '../../domain/caller.ts';
import type { Instant } from '../../domain/instant.ts';
import type { SealStatus, Status } from '../../domain/lifecycle.ts';
import type {
  Attempt,
  OnSuccess,
  ReportedValidation,
  Rollout,
  RolloutResult,
  RolloutSettings,
  StartPoint,
  Task,
  Validation,
  ValidationOverride,
} from '../../domain/rollout.ts';
import type { TimeSpan } from '../../domain/run.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { IdempotencyKey, Page, View } from './request.ts';

/**
 * Rollouts, attempts, leases and verdicts. Locks are taken on rollouts before trajectories, and on several rollouts in
 * order of key, PENDING ones last. Runs and stages are read without a lock (Q4). `attempt` is the token of a lease
 * (Q2): a verb with an older attempt fails with LEASE_LOST, even before the lease ends.
 */
export interface RolloutStore {
  /**
   * Creates the rollouts that do not exist by group number and number, and missing groups: all or none. Safe for
   * concurrent callers. An existing rollout must have been created with the same values; later changes do not matter.
   * A rollout without a number is always created, with a number above all of its group. The same request under a key
   * returns the same rollouts. With `claim`, claims all rollouts that it creates; the same request under a key returns
   * those of its claims that are still live.
   * Errors: STAGE_NOT_FOUND, TASK_NOT_FOUND, TRAJECTORY_NOT_FOUND and BRANCH_POINT_BEYOND_END (start point),
   * ROLLOUT_EXISTS (id), ROLLOUT_CONFLICT, QUEUE_CLOSED (only if a rollout would be created), REQUEST_ID_REUSED,
   * INVALID_REQUEST (no number is left). With `claim` also STAGE_NOT_CLAIMABLE, CLAIMS_TOO_LARGE, BRANCH_TOO_DEEP.
   */
  createRollouts(
    caller: Caller,
    stageId: string,
    rollouts: readonly NewRollout[],
    key: IdempotencyKey | undefined,
    claim: NewClaims | undefined,
  ): Promise<CreatedRollouts>;

  /**
   * Returns the rollout with its attempts, all read from one snapshot. Attempts are ordered by number, validations of
   * an attempt by name, and its environments by creation. Undefined if there is none.
   */
  getRollout(namespace: string, id: string): Promise<RolloutRecord | undefined>;

  /**
   * Lists rollouts. With `of`, the order is stage (by creation), group number, number. Without `of`, a task or a worker
   * is required, and the order is newest first, across runs. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND, GROUP_NOT_FOUND.
   */
  listRollouts(namespace: string, filter: RolloutFilter, page: Page<RolloutCursor>, view: View): Promise<Rollout[]>;

  /**
   * Q2, Q5: claims rollouts for many callers in one transaction, and returns outcomes in the order of the requests.
   * - Each claimed rollout moves from PENDING to INITIALIZING with a new attempt, its trajectory (a branch at the start
   *   point, if set) and the StatusChanges.
   * - Rollouts that other transactions hold are skipped.
   * - A rollout whose start point was deleted fails, and the next one is claimed (Q3).
   * - A key with the same request returns those of its claims that are still live. An empty answer is not stored.
   * An error of one request is its outcome and does not affect others: RUN_NOT_FOUND, STAGE_NOT_FOUND,
   * ROLLOUT_NOT_FOUND, REQUEST_ID_REUSED.
   */
  claimRollouts(requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]>;

  /**
   * Renews the leases that are still held (Q2). Returns states in the order given. `leaseMs` replaces the duration of
   * each lease; undefined keeps it (Q3).
   */
  heartbeatRollouts(caller: Caller, leases: readonly LeaseToken[], leaseMs: number | undefined): Promise<LeaseState[]>;

  /** L3: starts a rollout. Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION. */
  startRollout(caller: Caller, token: LeaseToken, details: RolloutMoveDetails): Promise<Rollout>;

  /**
   * Updates the given fields. Metrics, timings and environments belong to an attempt (M3): the given one, or by default
   * the latest. The rollout shows them unless it is PENDING. If only these fields are given, any attempt is accepted;
   * otherwise it must hold the rollout.
   * Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, NO_ATTEMPT, ENVIRONMENT_NOT_FOUND, INVALID_REQUEST.
   */
  updateRollout(caller: Caller, id: string, attempt: number | undefined, changes: RolloutChanges): Promise<Rollout>;

  /**
   * L3: completes, fails or cancels a rollout in one transaction. Stores result and validations, ends the attempt,
   * seals its trajectory if it is open, and updates the counters of the group. After a success under CANCEL_PENDING,
   * cancels siblings. Cancel has no attempt.
   * If the rollout has already ended with this status, an equal request succeeds and changes nothing. A different one
   * is RESULT_CONFLICT.
   * Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, UNEXPECTED_POSITION, ILLEGAL_TRANSITION, RESULT_CONFLICT.
   */
  endRollout(caller: Caller, end: RolloutEnd): Promise<Rollout>;

  /**
   * L3's Requeue by its worker (Q1, Q3), with what the worker reports of the attempt. The rollout can be claimed again
   * after its retry delay; an attempt that is refunded neither delays it nor counts towards its most attempts. An
   * attempt that was released already: the same request succeeds and changes nothing, and a different one is
   * RESULT_CONFLICT. An attempt that ended otherwise accepts no report and no refund (LEASE_LOST).
   * Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION, RESULT_CONFLICT.
   */
  releaseRollout(caller: Caller, token: LeaseToken, details: ReleaseDetails, report: AttemptReport): Promise<Rollout>;

  /**
   * L3: retries a terminal rollout. It is claimable at once, and max_attempts allows at least one more counted attempt.
   * Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION.
   */
  retryRollout(caller: Caller, token: LeaseToken, details: RolloutMoveDetails): Promise<Rollout>;

  /**
   * Q3: requeues at most `limit` rollouts of all namespaces whose leases or attempt timeouts have ended. Returns how
   * many.
   * A lease ends at max(last claim or heartbeat, last append to the attempt's trajectory) + the latest lease duration.
   * The clock of the database applies, and the end is checked again under the locks. Pauses of the run extend leases
   * and timeouts. Rows that other transactions hold are left to the next sweep.
   */
  sweepLeases(limit: number): Promise<number>;

  /**
   * Upserts the validation with its name, and updates the verdict of the attempt (default: the latest). If a completed
   * rollout becomes a success under CANCEL_PENDING, its siblings are cancelled in the same transaction. Errors:
   * ROLLOUT_NOT_FOUND, NO_ATTEMPT.
   */
  recordValidation(
    namespace: string,
    id: string,
    attempt: number | undefined,
    validation: NewValidation,
  ): Promise<{ readonly rollout: Rollout; readonly validation: Validation }>;

  /**
   * Appends an override to the log. Updates the verdict of the attempt and cancels siblings as `recordValidation` does.
   * Withdrawing an override does not restore cancelled siblings. Errors: ROLLOUT_NOT_FOUND, NO_ATTEMPT.
   */
  overrideValidation(
    caller: Caller,
    id: string,
    attempt: number | undefined,
    override: NewOverride,
  ): Promise<{ readonly rollout: Rollout; readonly override: ValidationOverride }>;

  /** Lists overrides, newest first. The cursor is the ordinal of the last row. Errors: ROLLOUT_NOT_FOUND. */
  listValidationOverrides(namespace: string, id: string, page: Page<bigint>): Promise<ValidationOverride[]>;
}

export interface NewRollout extends RolloutSettings {
  readonly id: string;
  readonly groupId: string;
  readonly groupNumber: bigint;
  /** Undefined for the next number of the group. */
  readonly number: bigint | undefined;
  readonly taskId: string;
  readonly inputJson: string;
  /** Undefined for no timeout. */
  readonly attemptTimeoutMs: number | undefined;
  /** Delay after the first counted attempt. It doubles after each further one, up to 5 minutes. */
  readonly retryDelayMs: number;
  readonly startFrom: StartPoint | undefined;
  /** Policy of the group, if the call creates it. */
  readonly onSuccess: OnSuccess;
}

/** How new rollouts are claimed. All must fit. There is a trajectory for each rollout of the request. */
export type NewClaims = Pick<ClaimRequest, 'workerId' | 'leaseMs' | 'trajectories' | 'countFitting'>;

export interface CreatedRollouts {
  readonly rollouts: readonly CreatedRollout[];
  readonly claims: readonly Claim[];
}

export interface CreatedRollout {
  readonly rolloutId: string;
  readonly groupId: string;
  readonly number: bigint;
  readonly existed: boolean;
}

/** A rollout with its attempts in order of number. */
export interface RolloutRecord {
  readonly rollout: Rollout;
  readonly attempts: readonly Attempt[];
}

/** Conditions are combined with AND. At least one of `of`, `taskId` and `workerId` is set. */
export interface RolloutFilter {
  readonly of?: { readonly runId: string } | { readonly stageId: string } | { readonly groupId: string };
  readonly taskId?: string;
  /** The worker that claimed the latest attempt, even if the attempt has ended. */
  readonly workerId?: string;
  /** Half-open range. */
  readonly createTimeFrom?: Instant;
  readonly createTimeTo?: Instant;
  readonly statuses?: readonly Status[];
  readonly labels?: ReadonlyMap<string, string>;
  readonly minReward?: number;
  readonly maxReward?: number;
  readonly success?: boolean;
}

export type RolloutCursor = RolloutPosition | { readonly key: bigint };

/** Cursor within a run, a stage or a group. */
export interface RolloutPosition {
  readonly stage: bigint;
  readonly groupNumber: bigint;
  readonly number: bigint;
}

/** Returns the cursor of a rollout within a run, a stage or a group. */
export function rolloutCursor({ stage, group, number }: Rollout): RolloutPosition {
  return { stage: stage.key, groupNumber: group.number, number };
}

export interface ClaimRequest {
  readonly caller: Caller;
  readonly runId: string | undefined;
  readonly stageId: string | undefined;
  readonly taskIds: readonly string[];
  /** Empty for any rollout. */
  readonly rolloutIds: readonly string[];
  readonly labels: ReadonlyMap<string, string>;
  readonly minPriority: number;
  readonly workerId: string;
  readonly leaseMs: number;
  /** Ids for the trajectories of attempts. Their number is the maximum number of claims. */
  readonly trajectories: readonly { readonly id: string; readonly uid: string }[];
  /** Returns how many of the first claims fit into the answer, at least 1. The others are not claimed (Q2). */
  readonly countFitting: (claims: readonly Claim[]) => number;
  readonly key: IdempotencyKey | undefined;
}

export type ClaimOutcome =
  | {
      readonly kind: 'claimed';
      readonly claims: readonly Claim[];
      /** No matching rollout is PENDING or live, and none can be created (Q2). */
      readonly drained: boolean;
      /**
       * Set only without claims: milliseconds until the next delayed matching rollout can be claimed. Undefined if none
       * is delayed.
       */
      readonly nextInMs?: number | undefined;
    }
  | { readonly kind: 'refused'; readonly error: Error };

export interface Claim {
  readonly rollout: Rollout;
  readonly task: Task | undefined;
  readonly trajectory: Trajectory;
  /** The limit of the rollout, else of its task, else of the plan. */
  readonly maxTurns: bigint | undefined;
}

/** Id of a rollout, and the claimed attempt. */
export interface LeaseToken {
  readonly id: string;
  readonly attempt: number;
}

export interface LeaseState extends LeaseToken {
  readonly kept: boolean;
  /** Undefined if the rollout was deleted. */
  readonly status: Status | undefined;
  readonly runStatus: Status | undefined;
  /** Undefined if the lease is lost. */
  readonly remainingMs: number | undefined;
}

export interface RolloutMoveDetails {
  readonly message: string;
  readonly metadataJson: string;
  readonly phase?: string | undefined;
}

export interface ReleaseDetails extends RolloutMoveDetails {
  readonly refundAttempt: boolean;
}

/** Absent fields are not changed. Present but undefined fields are cleared. */
export interface RolloutChanges extends Partial<RolloutSettings> {
  readonly statusMessage?: string;
  readonly phase?: string;
  readonly metrics?: ReadonlyMap<string, number>;
  readonly timings?: ReadonlyMap<string, TimeSpan>;
  /** Replaces all environments of the attempt. */
  readonly environmentIds?: readonly string[];
}

/** What a worker reports at the end of an attempt, besides the result. */
export interface AttemptReport {
  readonly validations: readonly NewValidation[];
  readonly metrics: ReadonlyMap<string, number>;
  readonly timings: ReadonlyMap<string, TimeSpan>;
}

export interface RolloutEnd extends AttemptReport {
  readonly id: string;
  readonly status: SealStatus;
  /** Undefined for Cancel, which ends any attempt. */
  readonly attempt: number | undefined;
  readonly details: RolloutMoveDetails;
  readonly result: RolloutResult | undefined;
  readonly expectedNextStepNumber: bigint | undefined;
}

export interface NewValidation extends ReportedValidation {
  /** The type of a validator of the rollout's task. Any other name is free. */
  readonly name: string;
  /** Applies to a free name only. A validator of the task has its own flag. */
  readonly advisory: boolean;
  /** If empty, `query` and `expectedResult` are copied from the validator, if there is one. */
  readonly query: string;
}

export interface NewOverride {
  readonly success: boolean | undefined;
  readonly reason: string;
  /** Empty for the actor of the caller. */
  readonly actor: string;
}
