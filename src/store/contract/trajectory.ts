import type { Caller } from '../../domain/caller.ts';
import type { Instant } from '../../domain/instant.ts';
import type { TrajectoryStatus } from '../../domain/lifecycle.ts';
import type { Link } from '../../domain/lineage.ts';
import type { NewState, NewStep } from '../../domain/step.ts';
import type { Trajectory, TrajectoryRef } from '../../domain/trajectory.ts';
import type { IdempotencyKey } from './idempotency.ts';
import type { Page } from './page.ts';

export interface TrajectoryStore {
  /**
   * Makes a root trajectory, RUNNING, with its step 0 if given, and writes its first StatusChange. A key used before with the same request
   * gives the trajectory made then, as it is now. `id` and `uid` are UUIDs of the caller's making.
   * Errors: TRAJECTORY_EXISTS (also where the id is hidden or being purged), REQUEST_ID_REUSED, TRAJECTORY_NOT_FOUND (made under this key, deleted
   * since), STATE_NOT_FOUND, RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND, INVALID_REQUEST (the experiment is not the run's).
   */
  createTrajectory(caller: Caller, making: NewTrajectory, key?: IdempotencyKey): Promise<Trajectory>;

  /**
   * Makes a branch (B1): one row, whose parent is the owner of the step, whatever trajectory is named as source; it belongs to the source's run and
   * experiment. Takes a lock that the
   * owner's writer does not wait for. Errors: as createTrajectory, TAG_NOT_FOUND, BRANCH_POINT_BEYOND_END, BRANCH_TOO_DEEP; TRAJECTORY_NOT_FOUND also where
   * the step was deleted meanwhile.
   */
  branchTrajectory(caller: Caller, making: NewBranch, key?: IdempotencyKey): Promise<Trajectory>;

  /** By id; undefined if none is there or it is hidden. */
  getTrajectory(namespace: string, id: string): Promise<Trajectory | undefined>;

  /** Newest first, hidden ones left out. The cursor is the key of the last row. */
  listTrajectories(namespace: string, filter: TrajectoryFilter, page: Page<bigint>): Promise<Trajectory[]>;

  /**
   * Lists the whole tree by key (a parent before its branches), hidden ones included, without those that are being purged. The cursor is the key of the
   * last row.
   */
  listTree(namespace: string, tree: bigint, page: Page<bigint>): Promise<Trajectory[]>;

  /**
   * The chain of ancestors down to the trajectory itself: from the owner of the step `from` on, else from the root. Never changes while the trajectory
   * lives (B1), so it can be cached. Empty if the trajectory is not there. Reads a bounded number of ancestors at a time, with other work in between.
   */
  getLineage(namespace: string, ref: TrajectoryRef, from?: bigint): Promise<Ancestor[]>;

  /** Returns trajectories of a tree by key, hidden ones included. Those that do not exist or are being purged are left out. For a page of keys. */
  getOwners(namespace: string, tree: bigint, keys: readonly bigint[]): Promise<ReadonlyMap<bigint, Owner>>;

  /** Changes what is given; labels are replaced, metrics merged by key (FM7). Errors: TRAJECTORY_NOT_FOUND, INVALID_REQUEST (over 256 metrics). */
  updateTrajectory(namespace: string, id: string, changes: TrajectoryChanges): Promise<Trajectory>;

  /**
   * Deletes a trajectory (B2, B3) in several transactions: the first one decides and hides it, the others remove rows. Resolves after the last one. If the
   * call ends before that, `purgeDeleted` removes the rest. Errors: TRAJECTORY_NOT_FOUND, HAS_BRANCHES.
   */
  deleteTrajectory(namespace: string, id: string, onBranches: OnBranches): Promise<Deletion>;

  /** Deletes idempotency keys older than `days` by the database's clock, at most `limit`; returns how many (ID1). */
  expireRequests(days: number, limit: number): Promise<number>;
}

export interface TrajectoryMaking {
  readonly id: string;
  readonly uid: string;
  readonly name: string;
  readonly labels: ReadonlyMap<string, string>;
  /** JSON text; empty: none. */
  readonly metadataJson: string;
}

export interface NewTrajectory extends TrajectoryMaking {
  readonly taskId: string;
  /** Ids of what it belongs to; undefined: nothing. With a run the experiment, if given, must be the run's. */
  readonly runId: string | undefined;
  readonly experimentId: string | undefined;
  readonly root: NewStep | undefined;
  /** Bytes of the root's states that came inline, each digest once. */
  readonly states: readonly NewState[];
}

export interface NewBranch extends TrajectoryMaking {
  /** The trajectory to branch from. */
  readonly sourceId: string;
  /** The last shared step, by number or by a tag of the source. */
  readonly at: { readonly stepNumber: bigint } | { readonly tag: string };
}

/** Filters that are set must all hold. */
export interface TrajectoryFilter {
  readonly taskId?: string;
  readonly statuses?: readonly TrajectoryStatus[];
  readonly labels?: ReadonlyMap<string, string>;
  readonly parentId?: string;
  readonly branchPoint?: bigint;
  readonly treeId?: string;
  readonly rootsOnly?: boolean;
  /** Only those that belong to no run. */
  readonly withoutRun?: boolean;
  readonly name?: string;
  readonly createTimeFrom?: Instant;
  readonly createTimeTo?: Instant;
  readonly runId?: string;
  readonly experimentId?: string;
}

export interface TrajectoryChanges {
  readonly name?: string;
  readonly labels?: ReadonlyMap<string, string>;
  readonly metadataJson?: string;
  readonly metrics?: ReadonlyMap<string, number>;
}

/** What people know a trajectory of a lineage by. */
export interface Owner {
  readonly id: string;
  readonly name: string;
  readonly hidden: boolean;
}

/** A trajectory of a lineage. */
export interface Ancestor extends Link, Owner {}

export type OnBranches = 'REFUSE' | 'CASCADE' | 'KEEP_SHARED';

export interface Deletion {
  /** Number of trajectories that this call deleted permanently. */
  readonly purged: bigint;
  /** The trajectory is hidden, since branches need steps of it. */
  readonly keptShared: boolean;
  /** Keys of what is not found any more, for caches and followers. */
  readonly keys: readonly bigint[];
}
