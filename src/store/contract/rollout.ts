import type { Caller } from '../../domain/caller.ts';
import type { Instant } from '../../domain/instant.ts';
import type { SealStatus, Status } from '../../domain/lifecycle.ts';
import type {
  Attempt,
  OnSuccess,
  Rollout,
  RolloutResult,
  StartPoint,
  Task,
  Validation,
  ValidationOverride,
  Validator,
} from '../../domain/rollout.ts';
import type { TimeSpan } from '../../domain/run.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { BookView } from './experiment.ts';
import type { IdempotencyKey } from './idempotency.ts';
import type { Page } from './page.ts';

/**
 * Rollouts, their attempts, leases and verdicts. Locks are taken rollout before trajectory, of many rollouts in order of key; runs and stages are read
 * without a lock (Q4). `attempt` is the token of a lease (Q2): a verb of an older one is LEASE_LOST, whatever the clock says.
 */
export interface RolloutStore {
  /**
   * Creates what does not exist by (group number, number), and groups that are missing, all or none; race-free. What exists must have been created with the
   * same values (ROLLOUT_CONFLICT), whatever was changed since.
   * Errors: STAGE_NOT_FOUND, TASK_NOT_FOUND, TRAJECTORY_NOT_FOUND and BRANCH_POINT_BEYOND_END (start point), ROLLOUT_EXISTS (id), ROLLOUT_CONFLICT,
   * QUEUE_CLOSED (only if something would be created).
   */
  createRollouts(caller: Caller, stageId: string, rollouts: readonly NewRollout[]): Promise<CreatedRollout[]>;

  /**
   * Returns the rollout with its attempts, all read from one snapshot. Attempts are ordered by number, validations of an attempt by name, and its
   * environments by creation. Undefined if there is none.
   */
  getRollout(namespace: string, id: string): Promise<RolloutRecord | undefined>;

  /**
   * Lists rollouts by stage in the order of creation, then group number, then number; without `of`, which then needs a task or worker, across runs by key,
   * newest first. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND, GROUP_NOT_FOUND.
   */
  listRollouts(namespace: string, filter: RolloutFilter, page: Page<RolloutCursor>, view: BookView): Promise<Rollout[]>;

  /**
   * Claims for many callers in one transaction (Q2, Q5): PENDING to INITIALIZING, with a new attempt, its trajectory (a branch at the start point, if there
   * is one) and the StatusChanges; rollouts that others hold are passed over. One whose start point is gone is FAILED, and the claim goes on to
   * the next (Q3). A key used before with the same request gives those of its claims that still live; an empty answer is not kept.
   * Outcomes come in the order of the requests. Errors of one request are its outcome alone: RUN_NOT_FOUND, STAGE_NOT_FOUND, REQUEST_ID_REUSED.
   */
  claimRollouts(requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]>;

  /** Keeps leases that are still held (Q2), in the order given. `leaseMs` replaces how long each lasts; undefined keeps the latest (Q3). */
  heartbeatRollouts(
    namespace: string,
    leases: readonly LeaseToken[],
    leaseMs: number | undefined,
  ): Promise<LeaseState[]>;

  /** L3's Start. Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION. */
  startRollout(caller: Caller, token: LeaseToken, said: RolloutSaid): Promise<Rollout>;

  /**
   * Changes what is given. Metrics, timings and environments belong to the attempt given, else to the last one that began (M3); the rollout shows them
   * unless it is PENDING. If nothing else is given, any attempt that began is accepted; otherwise only the one that holds the rollout.
   * Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, NO_ATTEMPT, ENVIRONMENT_NOT_FOUND, INVALID_REQUEST.
   */
  updateRollout(namespace: string, id: string, attempt: number | undefined, changes: RolloutChanges): Promise<Rollout>;

  /**
   * L3's Complete, Fail and Cancel in one transaction: result and validations, the attempt's end, the seal of its trajectory if that is there and open, the
   * group's counters, and under CANCEL_PENDING after a success the cancellation of siblings. Cancel carries no attempt. If the rollout has ended so already,
   * the same request succeeds and changes nothing, and a different one is RESULT_CONFLICT.
   * Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, UNEXPECTED_POSITION, ILLEGAL_TRANSITION, RESULT_CONFLICT.
   */
  endRollout(caller: Caller, end: RolloutEnd): Promise<Rollout>;

  /**
   * L3's Requeue by its worker (Q1, Q3), with what the worker reports of the attempt. The rollout can be claimed again after its retry delay; an attempt that
   * is refunded neither delays it nor counts towards its most attempts. An attempt that was released already: the same request succeeds and changes nothing,
   * and a different one is RESULT_CONFLICT. An attempt that ended otherwise accepts no report and no refund (LEASE_LOST).
   * Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION, RESULT_CONFLICT.
   */
  releaseRollout(caller: Caller, token: LeaseToken, said: ReleaseSaid, report: AttemptReport): Promise<Rollout>;

  /** L3's Retry: claimable at once, and one counted attempt more is allowed than there were. Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION. */
  retryRollout(caller: Caller, token: LeaseToken, said: RolloutSaid): Promise<Rollout>;

  /**
   * Requeues at most `limit` rollouts, of all namespaces, whose leases or attempt timeouts have ended. A lease ends at max(last claim or heartbeat, last
   * append to the attempt's trajectory) + the latest lease duration, by the database's clock, looked at again under the locks (Q3). Neither runs while the
   * run is paused, and rollouts of paused runs are left out. Rows that others hold are left for the next time. Returns how many.
   */
  sweepLeases(limit: number): Promise<number>;

  /**
   * Upserts the validation of one name and the verdict of an attempt that began, by default the last one. If that makes a completed rollout a success, its
   * siblings are cancelled under CANCEL_PENDING, all in one transaction. Errors: ROLLOUT_NOT_FOUND, NO_ATTEMPT.
   */
  recordValidation(
    namespace: string,
    id: string,
    attempt: number | undefined,
    validation: NewValidation,
  ): Promise<{ readonly rollout: Rollout; readonly validation: Validation }>;

  /**
   * Appends to the log, and changes the verdict of an attempt and cancels siblings as `recordValidation` does. Withdrawing an override does not bring siblings
   * back. Errors: ROLLOUT_NOT_FOUND, NO_ATTEMPT.
   */
  overrideValidation(
    caller: Caller,
    id: string,
    attempt: number | undefined,
    override: NewOverride,
  ): Promise<{ readonly rollout: Rollout; readonly override: ValidationOverride }>;

  /** Newest first. The cursor is the ordinal of the last row. Errors: ROLLOUT_NOT_FOUND. */
  listValidationOverrides(namespace: string, id: string, page: Page<bigint>): Promise<ValidationOverride[]>;
}

export interface NewRollout {
  readonly id: string;
  readonly groupId: string;
  readonly groupNumber: bigint;
  readonly number: bigint;
  readonly taskId: string;
  readonly labels: ReadonlyMap<string, string>;
  readonly inputJson: string;
  readonly priority: number;
  readonly maxTurns: bigint | undefined;
  readonly maxAttempts: number;
  /** Undefined: no bound. */
  readonly attemptTimeoutMs: number | undefined;
  /** After the first counted attempt; it doubles with each further one, up to 5 minutes. */
  readonly retryDelayMs: number;
  readonly startFrom: StartPoint | undefined;
  readonly modelUri: string;
  readonly metadataJson: string;
  /** Of the group, if it is made. */
  readonly onSuccess: OnSuccess;
}

export interface CreatedRollout {
  readonly rolloutId: string;
  readonly groupId: string;
  readonly existed: boolean;
}

/** A rollout with its attempts, by number. */
export interface RolloutRecord {
  readonly rollout: Rollout;
  readonly attempts: readonly Attempt[];
}

/** Filters that are set must all hold; of a run, a stage or a group, by id. At least one of `of`, `taskId` and `workerId` is set. */
export interface RolloutFilter {
  readonly of?: { readonly runId: string } | { readonly stageId: string } | { readonly groupId: string };
  readonly taskId?: string;
  /** The worker that claimed the last attempt that began, also if it has ended. */
  readonly workerId?: string;
  /** Half-open. */
  readonly createTimeFrom?: Instant;
  readonly createTimeTo?: Instant;
  readonly statuses?: readonly Status[];
  readonly labels?: ReadonlyMap<string, string>;
  readonly minReward?: number;
  readonly maxReward?: number;
  readonly success?: boolean;
}

export type RolloutCursor = RolloutPlaceCursor | { readonly key: bigint };

/** Within a run, a stage or a group. */
export interface RolloutPlaceCursor {
  readonly stage: bigint;
  readonly groupNumber: bigint;
  readonly number: bigint;
}

export interface ClaimRequest {
  readonly caller: Caller;
  readonly runId: string | undefined;
  readonly stageId: string | undefined;
  readonly taskIds: readonly string[];
  readonly labels: ReadonlyMap<string, string>;
  readonly minPriority: number;
  readonly workerId: string;
  readonly leaseMs: number;
  /** Ids for the attempts' trajectories: as many as may be claimed. */
  readonly trajectories: readonly { readonly id: string; readonly uid: string }[];
  /** Returns how many of these claims, from the first, fit into the answer; at least 1. The others are not claimed (Q2). */
  readonly countFitting: (claims: readonly Claim[]) => number;
  readonly key: IdempotencyKey | undefined;
}

export type ClaimOutcome =
  | {
      readonly kind: 'claimed';
      readonly claims: readonly Claim[];
      /** Nothing that fits is PENDING or live, and nothing can be created (Q2). */
      readonly drained: boolean;
      /** Without claims: milliseconds until the next delayed rollout that fits can be claimed. Undefined: none is delayed. */
      readonly nextInMs?: number | undefined;
    }
  | { readonly kind: 'refused'; readonly error: Error };

export interface Claim {
  readonly rollout: Rollout;
  readonly task: Task | undefined;
  readonly validators: readonly Validator[];
  readonly trajectory: Trajectory;
  /** Its own, else the task's, else the plan's. */
  readonly maxTurns: bigint | undefined;
}

/** A rollout by id, and the attempt that was claimed. */
export interface LeaseToken {
  readonly id: string;
  readonly attempt: number;
}

export interface LeaseState extends LeaseToken {
  readonly kept: boolean;
  /** Undefined where it was deleted. */
  readonly status: Status | undefined;
  readonly runStatus: Status | undefined;
  /** Undefined where it is lost. */
  readonly remainingMs: number | undefined;
}

export interface RolloutSaid {
  readonly message: string;
  readonly metadataJson: string;
  readonly phase?: string | undefined;
}

export interface ReleaseSaid extends RolloutSaid {
  readonly refundAttempt: boolean;
}

/** What is not there stays; `undefined` that is there clears. */
export interface RolloutChanges {
  readonly labels?: ReadonlyMap<string, string>;
  readonly priority?: number;
  readonly maxTurns?: bigint | undefined;
  readonly maxAttempts?: number;
  readonly modelUri?: string;
  readonly statusMessage?: string;
  readonly phase?: string;
  readonly metrics?: ReadonlyMap<string, number>;
  readonly timings?: ReadonlyMap<string, TimeSpan>;
  readonly metadataJson?: string;
  /** They replace all. */
  readonly environmentIds?: readonly string[];
}

/** What a worker reports of an attempt at its end, besides the result. */
export interface AttemptReport {
  readonly validations: readonly NewValidation[];
  readonly metrics: ReadonlyMap<string, number>;
  readonly timings: ReadonlyMap<string, TimeSpan>;
}

export interface RolloutEnd extends AttemptReport {
  readonly id: string;
  readonly status: SealStatus;
  /** Undefined for Cancel: whoever holds it. */
  readonly attempt: number | undefined;
  readonly said: RolloutSaid;
  readonly result: RolloutResult | undefined;
  readonly expectedNextStepNumber: bigint | undefined;
}

export interface NewValidation {
  /** The type of a validator of the rollout's task; any other name is free. */
  readonly name: string;
  readonly success: boolean;
  /** Of a free name. A validator of the task has its own. */
  readonly advisory: boolean;
  /** Empty: the validator's, if there is one; the expected result likewise. */
  readonly query: string;
  readonly expectedResult: string;
  readonly actualResult: string;
  readonly executionMs: number | undefined;
  readonly errorMessage: string;
  readonly detailsJson: string;
}

export interface NewOverride {
  readonly success: boolean | undefined;
  readonly reason: string;
  /** Empty: the caller's actor. */
  readonly actor: string;
}
