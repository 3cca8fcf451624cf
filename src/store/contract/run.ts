import type { Caller } from '../../domain/caller.ts';
import type { Instant } from '../../domain/instant.ts';
import type { InitialStatus, Status, Verb } from '../../domain/lifecycle.ts';
import type { RunTally } from '../../domain/progress.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Plan, Run, Stage } from '../../domain/run.ts';
import type { NewState, NewStep } from '../../domain/step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { BookDeletion, BranchPolicy } from './book_deletion.ts';
import type { BookView, ExperimentPlace } from './experiment.ts';
import type { IdempotencyKey } from './idempotency.ts';
import type { Page } from './page.ts';

/** A run by its id, or by its name in an experiment. */
export type RunPlace = { readonly id: string } | { readonly name: string; readonly experimentName: string };

export interface RunStore {
  /**
   * Makes a run with the next number of its experiment, its effective config (M4), its first StatusChange, and its main trajectory if given, in
   * one transaction. With `returnExisting` the run that has the name is the answer, unless config or plan are stated and differ.
   * Errors: EXPERIMENT_NOT_FOUND, RUN_EXISTS, CONFIG_MISMATCH, REQUEST_ID_REUSED, RUN_NOT_FOUND (made under this key, deleted since),
   * INVALID_REQUEST (effective config too large; removed path that leads to no key), TRAJECTORY_EXISTS, STATE_NOT_FOUND.
   */
  createRun(caller: Caller, making: NewRun, key?: IdempotencyKey): Promise<MadeRun>;

  /**
   * Makes a run and its main trajectory, a branch of another run's (M4, B1), in one transaction.
   * Errors: RUN_NOT_FOUND, NO_MAIN_TRAJECTORY, TAG_NOT_FOUND, BRANCH_POINT_BEYOND_END, and as createRun.
   */
  branchRun(caller: Caller, making: NewRunBranch, key?: IdempotencyKey): Promise<MadeRun>;

  /** Undefined if none is there. */
  getRun(namespace: string, which: RunPlace): Promise<Run | undefined>;

  /** Newest first. The cursor is the key of the last row. Errors: EXPERIMENT_NOT_FOUND. */
  listRuns(namespace: string, filter: RunFilter, page: Page<bigint>, view: BookView): Promise<Run[]>;

  /** The whole tree of a run by key (a parent before its branches), BASIC view; undefined if the run is not there. The cursor is the key of the last row. */
  listRunTree(namespace: string, runId: string, page: Page<bigint>): Promise<Run[] | undefined>;

  /** All trees of an experiment, ordered as in listRunTree. Errors: EXPERIMENT_NOT_FOUND. */
  listRunTrees(namespace: string, experimentId: string, page: Page<bigint>): Promise<Run[]>;

  /** Changes what is given; labels are replaced, metrics merged by key (FM7). Errors: RUN_NOT_FOUND, RUN_EXISTS (name), INVALID_REQUEST (over 256 metrics). */
  updateRun(namespace: string, id: string, changes: RunChanges): Promise<Run>;

  /**
   * L2, L5: moves the status, with its StatusChange, or leaves all as it is. A terminal move seals the main trajectory in the same transaction; a reopening
   * replaces a sealed one. Errors: RUN_NOT_FOUND, ILLEGAL_TRANSITION, RESULT_CONFLICT, BRANCH_TOO_DEEP.
   */
  moveRun(caller: Caller, id: string, move: RunMove): Promise<Run>;

  /** Errors: RUN_NOT_FOUND. */
  heartbeatRun(namespace: string, id: string): Promise<Heartbeat>;

  /** Fails at most `limit` stale runs, of all namespaces, that asked for it; rows that others hold are left for the next time. Returns how many. */
  failStaleRuns(limit: number): Promise<number>;

  /** What progress is made of, for many runs in a number of statements that does not grow with them. Every run asked for has an entry. */
  tallyRuns(namespace: string, runs: readonly bigint[]): Promise<ReadonlyMap<bigint, RunTally>>;

  /**
   * Returns what changed of a run since a horizon (M5). Without one: the snapshot, with open stages only unless `allStages`. The horizon that it returns is
   * the one for the next look: no change that commits later is missed, some may be returned twice. BASIC view. Undefined if the run is gone.
   */
  readRunChanges(
    namespace: string,
    runId: string,
    since: Horizon | undefined,
    allStages: boolean,
  ): Promise<RunChangesRead | undefined>;

  /**
   * Returns a page of the groups of a run whose own rows changed since a horizon. Without one: all groups, of open stages only unless `allStages`. BASIC
   * view. The pages of one look cost as much as the groups that they return. Read after `readRunChanges`, from its `since`. A run that is gone has none.
   */
  readChangedGroups(
    namespace: string,
    run: bigint,
    where: ChangedIn,
    page: Page<ChangeCursor>,
  ): Promise<ChangedPage<Group>>;

  /** Returns the rollouts likewise, and since a horizon also the groups that they belong to: these change with them. */
  readChangedRollouts(
    namespace: string,
    run: bigint,
    where: ChangedIn,
    page: Page<ChangeCursor>,
  ): Promise<ChangedPage<Rollout> & { readonly groups: readonly Group[] }>;

  /** The live rollouts of a run, whose turns and reward change with each append. BASIC view. By key; the cursor is the key of the last one. */
  readLiveRollouts(namespace: string, run: bigint, page: Page<bigint>): Promise<Rollout[]>;

  /** Hides and fences the run with its trajectories (B4); `purgeDeleted` does the rest. Errors: RUN_NOT_FOUND, HAS_BRANCHES, RUN_ACTIVE. */
  deleteRun(namespace: string, id: string, onBranches: BranchPolicy, cancelLive?: boolean): Promise<BookDeletion>;

  /**
   * Cancels at most 200 rollouts of a run or stage that was marked by its move, as CancelRollout does, in one transaction. Undefined if there is no mark: it
   * was reopened. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND.
   */
  cancelNextRollouts(namespace: string, of: RolloutsOf): Promise<RolloutsCancelled | undefined>;

  /** The same for the next run or stage that is marked, of all namespaces. False: no rollout is left to be cancelled. */
  cancelMarkedRollouts(): Promise<boolean>;

  /** Removes a batch of about `limit` rows of trajectories, runs and experiments that were deleted, of all namespaces. False: nothing is left. */
  purgeDeleted(limit: number): Promise<boolean>;
}

export interface RunMaking {
  readonly id: string;
  /** Empty: `run-NUMBER`. */
  readonly name: string;
  readonly description: string;
  /** A JSON object, or empty: its own config, or its overrides. */
  readonly configJson: string;
  /** JSON Pointers to keys of the config that it starts from. */
  readonly removedConfigPaths: readonly string[];
  readonly labels: ReadonlyMap<string, string>;
  readonly metadataJson: string;
  readonly plan: Plan | undefined;
  readonly status: InitialStatus;
  /** Undefined: the default; of a branch: the parent's. */
  readonly heartbeatTimeoutMs: number | undefined;
  readonly failWhenStale: boolean;
}

export interface NewRun extends RunMaking {
  /** Undefined: `default`, made if it is not there. */
  readonly experiment: ExperimentPlace | undefined;
  /** Id for the experiment `default`, if it has to be made. */
  readonly defaultExperimentId: string;
  readonly returnExisting: boolean;
  readonly mainTrajectory: NewMainTrajectory | undefined;
}

export interface NewMainTrajectory {
  readonly id: string;
  readonly uid: string;
  readonly taskId: string;
  readonly root: NewStep | undefined;
  /** Bytes of the root's states that came inline, each digest once. */
  readonly states: readonly NewState[];
}

export interface NewRunBranch extends RunMaking {
  readonly sourceId: string;
  /** The last shared step, by number or by a tag of the source's main trajectory. */
  readonly at: { readonly stepNumber: bigint } | { readonly tag: string };
  readonly trajectoryId: string;
  readonly trajectoryUid: string;
}

export interface MadeRun {
  readonly run: Run;
  /** By this call, not before. */
  readonly created: boolean;
  readonly mainTrajectory: Trajectory | undefined;
}

/** Filters that are set must all hold. */
export interface RunFilter {
  readonly experiment?: ExperimentPlace;
  readonly name?: string;
  readonly statuses?: readonly Status[];
  readonly labels?: ReadonlyMap<string, string>;
  readonly parentId?: string;
  readonly rootsOnly?: boolean;
  readonly staleOnly?: boolean;
  readonly createTimeFrom?: Instant;
  readonly createTimeTo?: Instant;
}

/** What is not there stays; a plan that is there and undefined goes, a timeout goes back to its default. */
export interface RunChanges {
  readonly name?: string;
  readonly description?: string;
  readonly labels?: ReadonlyMap<string, string>;
  readonly metadataJson?: string;
  readonly plan?: Plan | undefined;
  readonly statusMessage?: string;
  readonly phase?: string;
  readonly metrics?: ReadonlyMap<string, number>;
  readonly heartbeatTimeoutMs?: number | undefined;
  readonly failWhenStale?: boolean;
}

export interface RunMove {
  readonly verb: Verb;
  readonly said: Said;
  /** Of a terminal verb: the main trajectory is not sealed. */
  readonly keepTrajectoryOpen: boolean;
  /** Of Cancel: marks the rollouts of the run to be cancelled, for `cancelNextRollouts`. A reopening removes the mark. Default: false. */
  readonly cancelRollouts?: boolean;
  /** For the main trajectory that a reopening creates. */
  readonly trajectoryId: string;
  readonly trajectoryUid: string;
}

/** All rollouts of a run or stage. */
export type RolloutsOf = { readonly runId: string } | { readonly stageId: string };

export interface RolloutsCancelled {
  /** Rollouts that were cancelled since the run or stage was marked, by all callers. */
  readonly cancelled: bigint;
  /** Some may be left. */
  readonly more: boolean;
}

/** What a verb says beside itself. */
export interface Said {
  readonly message: string;
  readonly metadataJson: string;
  /** Undefined: it stays. */
  readonly phase: string | undefined;
  /** CompleteRun's; empty elsewhere. */
  readonly resultJson: string;
}

export interface Heartbeat {
  readonly status: Status;
  readonly statusMessage: string;
  readonly heartbeatTime: Instant;
}

/**
 * What was committed when a look at a run began: every transaction whose mark is below `next` and not in `open`. Known to one store object only, and never
 * stored.
 */
export interface Horizon {
  readonly next: bigint;
  readonly open: readonly bigint[];
  /** Identifies the time in which marks only rise: from the start of the database server, or the loss of a connection to it, to the next one. */
  readonly era: string;
}

export interface ChangedIn {
  /** Undefined: the snapshot. */
  readonly since: Horizon | undefined;
  /** The snapshot is of all stages, not of open ones only. */
  readonly allStages: boolean;
}

/** Where a page of changes ends. */
export type ChangeCursor = readonly bigint[];

export interface ChangedPage<Row> {
  readonly rows: readonly Row[];
  /** Undefined: this is the last page. */
  readonly next: ChangeCursor | undefined;
}

export interface RunChangesRead {
  /** As it is now, whether it changed or not. */
  readonly run: Run;
  readonly stages: readonly Stage[];
  readonly tally: RunTally;
  readonly horizon: Horizon;
  /** The horizon that was asked for; undefined if marks cannot be compared with it any more, and everything was read instead. */
  readonly since: Horizon | undefined;
}
