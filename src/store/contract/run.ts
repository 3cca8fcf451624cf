import type { Caller } from '../../domain/caller.ts';
import type { Instant } from '../../domain/instant.ts';
import type { InitialStatus, Status, Verb } from '../../domain/lifecycle.ts';
import type { Sorted } from '../../domain/list_order.ts';
import type { RunTally } from '../../domain/progress.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Run, RunSettings, Stage } from '../../domain/run.ts';
import type { NewState } from '../../domain/step.ts';
import type { PackedStep } from '../../domain/step_codec/packed_step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { BranchPolicy, ExperimentReference, RunDeletion } from './experiment.ts';
import type { IdempotencyKey, Page, View } from './request.ts';

/** Identifies a run by id, or by name in an experiment. */
export type RunReference = { readonly id: string } | { readonly name: string; readonly experimentName: string };

export interface RunStore {
  /**
   * Creates a run in one transaction, with the next number of its experiment, its effective config (M4), its first
   * StatusChange, and its main trajectory if given. With `returnExisting`, returns the run that has the name, unless a
   * stated config or plan differs.
   * Errors: EXPERIMENT_NOT_FOUND, RUN_EXISTS, CONFIG_MISMATCH, REQUEST_ID_REUSED, RUN_NOT_FOUND (created with this key
   * and deleted since), INVALID_REQUEST (effective config too large, or a removed path without key), TRAJECTORY_EXISTS,
   * STATE_NOT_FOUND.
   */
  createRun(caller: Caller, newRun: NewRun, key?: IdempotencyKey): Promise<CreatedRun>;

  /**
   * Creates a run and its main trajectory in one transaction, both as branches of another run's (M4, B1).
   * Errors: RUN_NOT_FOUND, NO_MAIN_TRAJECTORY, TAG_NOT_FOUND, BRANCH_POINT_BEYOND_END, and those of createRun.
   */
  branchRun(caller: Caller, newBranch: NewRunBranch, key?: IdempotencyKey): Promise<CreatedRun>;

  /** Returns undefined if the run does not exist. */
  getRun(namespace: string, which: RunReference): Promise<Run | undefined>;

  /** Lists runs, by default newest first. The cursor is the key of the last row. Errors: EXPERIMENT_NOT_FOUND. */
  listRuns(namespace: string, filter: RunFilter, page: Page<bigint> & Sorted, view: View): Promise<Run[]>;

  /**
   * Lists the whole tree of a run by key, so that a parent precedes its branches. BASIC view. Returns undefined if the
   * run does not exist. The cursor is the key of the last row.
   */
  listRunTree(namespace: string, runId: string, page: Page<bigint>): Promise<Run[] | undefined>;

  /** Lists all trees of an experiment in the order of listRunTree. Errors: EXPERIMENT_NOT_FOUND. */
  listRunTrees(namespace: string, experimentId: string, page: Page<bigint>): Promise<Run[]>;

  /**
   * Updates the given fields. Labels are replaced, and metrics are merged by key (FM7). Errors: RUN_NOT_FOUND,
   * RUN_EXISTS (name), INVALID_REQUEST (more than 256 metrics).
   */
  updateRun(namespace: string, id: string, changes: RunChanges): Promise<Run>;

  /**
   * L2, L5: applies a verb and records the StatusChange, or changes nothing if the verb is already in effect. A
   * terminal verb seals the main trajectory in the same transaction. Reopen replaces a sealed one. Errors:
   * RUN_NOT_FOUND, ILLEGAL_TRANSITION, RESULT_CONFLICT, BRANCH_TOO_DEEP.
   */
  moveRun(caller: Caller, id: string, move: RunMove): Promise<Run>;

  /** Records a heartbeat. Errors: RUN_NOT_FOUND. */
  heartbeatRun(namespace: string, id: string): Promise<Heartbeat>;

  /**
   * Fails at most `limit` stale runs of all namespaces that have `fail_when_stale`. Rows that other transactions hold
   * are left to the next sweep. Returns how many.
   */
  failStaleRuns(limit: number): Promise<number>;

  /**
   * Counts what progress is computed from. The number of statements does not grow with the runs. Every requested run
   * has an entry.
   */
  tallyRuns(namespace: string, runs: readonly bigint[]): Promise<ReadonlyMap<bigint, RunTally>>;

  /**
   * M5: returns what changed in a run since a horizon. Without one, returns a snapshot, with open stages only unless
   * `allStages`. The returned horizon is for the next call: it misses no change that commits later, and may return some
   * twice. BASIC view. Undefined if the run was deleted.
   */
  readRunChanges(
    namespace: string,
    runId: string,
    since: Horizon | undefined,
    allStages: boolean,
  ): Promise<RunChangesRead | undefined>;

  /**
   * Returns a page of the groups of a run whose own rows changed since a horizon. Without a horizon, returns all
   * groups, of open stages only unless `allStages`. BASIC view. Must follow `readRunChanges`, with its `since`. All
   * pages together cost as much as the groups that they return. A deleted run has no groups.
   */
  readChangedGroups(
    namespace: string,
    run: bigint,
    where: ChangedIn,
    page: Page<ChangeCursor>,
  ): Promise<ChangedPage<Group>>;

  /** Returns rollouts in the same way. With a horizon, also returns their groups, which change with them. */
  readChangedRollouts(
    namespace: string,
    run: bigint,
    where: ChangedIn,
    page: Page<ChangeCursor>,
  ): Promise<ChangedPage<Rollout> & { readonly groups: readonly Group[] }>;

  /**
   * Returns the live rollouts of a run, whose turns and reward change with each append. BASIC view. Order is by key;
   * the cursor is the key of the last row.
   */
  readLiveRollouts(namespace: string, run: bigint, page: Page<bigint>): Promise<Rollout[]>;

  /**
   * Hides and fences the run with its trajectories (B4); `purgeDeleted` removes the rows. Errors: RUN_NOT_FOUND,
   * HAS_BRANCHES, RUN_ACTIVE.
   */
  deleteRun(namespace: string, id: string, onBranches: BranchPolicy, cancelLive?: boolean): Promise<RunDeletion>;

  /**
   * Cancels at most 200 rollouts of a run or stage in one transaction, as CancelRollout does. `moveRun` or `moveStage`
   * must have requested it. Returns undefined if there is no request, because the run or stage was reopened. Errors:
   * RUN_NOT_FOUND, STAGE_NOT_FOUND.
   */
  cancelNextRollouts(namespace: string, of: RolloutsOf): Promise<RolloutsCancelled | undefined>;

  /**
   * Does the same for the next requested run or stage of all namespaces. Returns false if nothing is left to cancel.
   */
  cancelMarkedRollouts(): Promise<boolean>;

  /**
   * Removes about `limit` rows of deleted trajectories, runs and experiments of all namespaces. Returns false if
   * nothing is left.
   */
  purgeDeleted(limit: number): Promise<boolean>;
}

/** An empty name becomes `run-NUMBER`. */
export interface NewRunFields extends RunSettings {
  readonly id: string;
  /** A JSON object or empty: the run's own config, or its overrides. */
  readonly configJson: string;
  /** JSON Pointers to keys that are removed from the inherited config. */
  readonly removedConfigPaths: readonly string[];
  readonly status: InitialStatus;
  /** Undefined for the default; in a branch, for the parent's timeout. */
  readonly heartbeatTimeoutMs: number | undefined;
}

export interface NewRun extends NewRunFields {
  /** Undefined for the experiment `default`, which is created if missing. */
  readonly experiment: ExperimentReference | undefined;
  /** Id of the experiment `default`, if it must be created. */
  readonly defaultExperimentId: string;
  readonly returnExisting: boolean;
  readonly mainTrajectory: NewMainTrajectory | undefined;
}

export interface NewMainTrajectory {
  readonly id: string;
  readonly uid: string;
  readonly taskId: string;
  readonly root: PackedStep | undefined;
  /** Bytes of the root's inline states, each digest once. */
  readonly states: readonly NewState[];
}

export interface NewRunBranch extends NewRunFields {
  readonly sourceId: string;
  /** The branch point, by number or by a tag of the source's main trajectory. */
  readonly at: { readonly stepNumber: bigint } | { readonly tag: string };
  readonly trajectoryId: string;
  readonly trajectoryUid: string;
}

export interface CreatedRun {
  readonly run: Run;
  /** Whether this call created the run. */
  readonly created: boolean;
  readonly mainTrajectory: Trajectory | undefined;
}

/** Conditions are combined with AND. */
export interface RunFilter {
  readonly experiment?: ExperimentReference;
  readonly name?: string;
  /** As in `TrajectoryFilter`. */
  readonly text?: string;
  readonly statuses?: readonly Status[];
  readonly labels?: ReadonlyMap<string, string>;
  readonly parentId?: string;
  readonly rootsOnly?: boolean;
  readonly staleOnly?: boolean;
  readonly createTimeFrom?: Instant;
  readonly createTimeTo?: Instant;
}

/**
 * Absent fields are not changed. A present but undefined plan is cleared, and such a timeout is reset to its default.
 */
export interface RunChanges extends Partial<RunSettings> {
  readonly statusMessage?: string;
  readonly phase?: string;
  readonly metrics?: ReadonlyMap<string, number>;
  readonly heartbeatTimeoutMs?: number | undefined;
}

export interface RunMove {
  readonly verb: Verb;
  readonly details: MoveDetails;
  /** For terminal verbs: does not seal the main trajectory. */
  readonly keepTrajectoryOpen: boolean;
  /**
   * For Cancel: requests the cancellation of the run's rollouts, for `cancelNextRollouts`. Reopen withdraws the
   * request. Default: false.
   */
  readonly cancelRollouts?: boolean;
  /** Ids of the main trajectory that Reopen may create. */
  readonly trajectoryId: string;
  readonly trajectoryUid: string;
}

/** All rollouts of a run or stage. */
export type RolloutsOf = { readonly runId: string } | { readonly stageId: string };

export interface RolloutsCancelled {
  /** Number of rollouts cancelled since the request, by all callers. */
  readonly cancelled: bigint;
  /** Whether rollouts may remain. */
  readonly more: boolean;
}

/** Details of a verb. */
export interface MoveDetails {
  readonly message: string;
  readonly metadataJson: string;
  /** Undefined: not changed. */
  readonly phase: string | undefined;
  /** For CompleteRun only; otherwise empty. */
  readonly resultJson: string;
}

export interface Heartbeat {
  readonly status: Status;
  readonly statusMessage: string;
  readonly heartbeatTime: Instant;
}

/**
 * The transactions that were committed when a read of a run began: those with a mark below `next` that are not in
 * `open`. Valid for one store object, and never stored.
 */
export interface Horizon {
  readonly next: bigint;
  readonly open: readonly bigint[];
  /**
   * Identifies a period in which marks only rise. It ends when the database server restarts or the connection to it is
   * lost.
   */
  readonly era: string;
}

export interface ChangedIn {
  /** Undefined for a snapshot. */
  readonly since: Horizon | undefined;
  /** Whether a snapshot contains all stages, not only open ones. */
  readonly allStages: boolean;
}

/** Position after a page of changes. */
export type ChangeCursor = readonly bigint[];

export interface ChangedPage<Row> {
  readonly rows: readonly Row[];
  /** Undefined on the last page. */
  readonly next: ChangeCursor | undefined;
}

export interface RunChangesRead {
  /** The current run, whether or not it changed. */
  readonly run: Run;
  readonly stages: readonly Stage[];
  readonly tally: RunTally;
  readonly horizon: Horizon;
  /** The requested horizon. Undefined if marks can no longer be compared with it, so that everything was read. */
  readonly since: Horizon | undefined;
}
