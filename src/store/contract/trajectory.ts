import type { Caller } from '../../domain/caller.ts';
import type { Gain } from '../../domain/gain.ts';
import type { Instant } from '../../domain/instant.ts';
import type { TrajectoryStatus } from '../../domain/lifecycle.ts';
import type { Link } from '../../domain/lineage.ts';
import type { Sorted } from '../../domain/list_order.ts';
import type { NewState } from '../../domain/step.ts';
import type { PackedStep } from '../../domain/step_codec/packed_step.ts';
import type { Trajectory, TrajectoryRef, TrajectorySettings } from '../../domain/trajectory.ts';
import type { IdempotencyKey, Page } from './request.ts';

export interface TrajectoryStore {
  /**
   * Creates a RUNNING root trajectory with its first StatusChange, and step 0 if given. A known key with the same
   * request returns the current value of its trajectory. The caller generates the UUIDs `id` and `uid`.
   * Errors: TRAJECTORY_EXISTS (also if the id is hidden or being purged), CONFIG_MISMATCH (with `returnExisting`:
   * another request created the trajectory), REQUEST_ID_REUSED, TRAJECTORY_NOT_FOUND
   * (created with this key and deleted since), STATE_NOT_FOUND, RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND, INVALID_REQUEST
   * (the experiment is not the run's).
   */
  createTrajectory(caller: Caller, newTrajectory: NewTrajectory, key?: IdempotencyKey): Promise<Trajectory>;

  /**
   * B1: creates a branch, which is one row. Its parent is the owner of the step, whichever trajectory is the source.
   * The branch belongs to the source's run and experiment. The lock does not block the owner's writer.
   * Errors: those of createTrajectory, TAG_NOT_FOUND, BRANCH_POINT_BEYOND_END, BRANCH_TOO_DEEP, TRAJECTORY_NOT_FOUND
   * (also if the step was deleted in the meantime).
   */
  branchTrajectory(caller: Caller, newBranch: NewBranch, key?: IdempotencyKey): Promise<Trajectory>;

  /**
   * Creates branches at the ends of trajectories in one transaction, at most one for each id. Leaves out those whose
   * source was deleted since it was read, and those that were deleted since an earlier call created them. Returns how
   * many of the branches exist. The key is compared in each call, and stored with the first branch that is created.
   * Errors: BRANCH_TOO_DEEP, REQUEST_ID_REUSED.
   */
  branchTrajectories(caller: Caller, branches: readonly NewEndBranch[], key: IdempotencyKey): Promise<number>;

  /** Returns a trajectory by id; undefined if it does not exist or is hidden. */
  getTrajectory(namespace: string, id: string): Promise<Trajectory | undefined>;

  /** Returns the row keys of the visible trajectories among these ids. */
  findTrajectoryRefs(namespace: string, ids: readonly string[]): Promise<ReadonlyMap<string, TrajectoryRef>>;

  /**
   * Returns the row keys of a trajectory, if this process has written to it lately. It may have been deleted since, so
   * TRAJECTORY_NOT_FOUND of an append to it says nothing about its id: look it up (`findTrajectoryRefs`).
   */
  knownTrajectoryRef(namespace: string, id: string): TrajectoryRef | undefined;

  /** Lists visible trajectories, by default newest first. The cursor is the key of the last row. */
  listTrajectories(namespace: string, filter: TrajectoryFilter, page: Page<bigint> & Sorted): Promise<Trajectory[]>;

  /**
   * Returns where visible trajectories are in an order. Steps that are appended meanwhile move a trajectory in the
   * order of its rewards.
   */
  orderTrajectories(
    namespace: string,
    filter: TrajectoryFilter,
    order: TrajectorySort,
    page: Page<TrajectoryPlace>,
  ): Promise<TrajectoryPlace[]>;

  /** Returns visible trajectories by key or id, in any order. */
  findTrajectories(
    namespace: string,
    which: { readonly keys: readonly bigint[] } | { readonly ids: readonly string[] },
  ): Promise<SizedTrajectory[]>;

  /**
   * Lists the whole tree by key, so that a parent precedes its branches. Includes hidden trajectories, but not those
   * that are being purged. The cursor is the key of the last row. Default: all keys.
   */
  listTree(namespace: string, tree: bigint, page: Page<bigint>, keys?: readonly bigint[]): Promise<Trajectory[]>;

  /** Compares branches of a tree with their parents. Omits roots, hidden trajectories, and those without own steps. */
  readGains(namespace: string, tree: bigint, branches: readonly bigint[]): Promise<ReadonlyMap<bigint, Gain>>;

  /**
   * Returns the ancestors and the trajectory itself, beginning with the owner of step `from` or the root. The result
   * never changes while the trajectory exists (B1), so it can be cached. Empty if the trajectory does not exist. Reads
   * a bounded number of ancestors at a time, and lets other work run in between.
   */
  getLineage(namespace: string, ref: TrajectoryRef, from?: bigint): Promise<Ancestor[]>;

  /**
   * Returns trajectories of a tree by key, for a page of keys. Includes hidden ones. Omits those that do not exist or
   * are being purged.
   */
  getOwners(namespace: string, tree: bigint, keys: readonly bigint[]): Promise<ReadonlyMap<bigint, Owner>>;

  /**
   * Updates the given fields. Labels are replaced, and metrics are merged by key (FM7). Errors: TRAJECTORY_NOT_FOUND,
   * INVALID_REQUEST (more than 256 metrics).
   */
  updateTrajectory(namespace: string, id: string, changes: TrajectoryChanges): Promise<Trajectory>;

  /**
   * B2, B3: deletes a trajectory in several transactions. The first one decides and hides it, and the others remove
   * rows. Resolves after the last one. If the call ends earlier, `purgeDeleted` removes the rest. Errors:
   * TRAJECTORY_NOT_FOUND, HAS_BRANCHES.
   */
  deleteTrajectory(namespace: string, id: string, onBranches: OnBranches): Promise<Deletion>;

  /**
   * ID1: deletes at most `limit` idempotency keys older than `days`, by the clock of the database, and as many ids of
   * trajectories that were deleted 400 days ago (W1). Returns how many of the more frequent kind.
   */
  expireRequests(days: number, limit: number): Promise<number>;
}

export interface NewTrajectoryFields extends TrajectorySettings {
  readonly id: string;
  readonly uid: string;
  /** Versioned digest of the request, kept with the trajectory. Default: none, which equals no request's. */
  readonly createDigest?: string;
  /** Keys of step metrics that lists can sort own steps by. A branch also has those of its source. Default: none. */
  readonly scoredMetrics?: readonly string[];
}

export interface NewTrajectory extends NewTrajectoryFields {
  readonly taskId: string;
  /** Ids of the run and the experiment. If both are given, the experiment must be the run's. */
  readonly runId: string | undefined;
  readonly experimentId: string | undefined;
  readonly root: PackedStep | undefined;
  /** Bytes of the root's inline states, each digest once. */
  readonly states: readonly NewState[];
  /** Returns the trajectory with the id, if the same request created it. */
  readonly returnExisting?: boolean;
}

export interface NewBranch extends NewTrajectoryFields {
  /** The trajectory to branch from. */
  readonly sourceId: string;
  /** Default: that of the source. */
  readonly taskId?: string | undefined;
  /** The branch point, by number or by a tag of the source. */
  readonly at: { readonly stepNumber: bigint } | { readonly tag: string };
}

/** A branch of all steps that a trajectory had when it was read; at least one. */
export interface NewEndBranch extends Omit<NewTrajectoryFields, 'createDigest' | 'scoredMetrics'> {
  readonly source: Trajectory;
  readonly taskId: string;
}

/** W1: a trajectory to create when it is opened. */
export type TrajectoryCreation = { readonly making: NewTrajectory | NewBranch; readonly key: IdempotencyKey };

/** Conditions are combined with AND. */
export interface TrajectoryFilter {
  readonly ids?: readonly string[];
  /** Key of the newest trajectory that matches. */
  readonly newest?: bigint;
  readonly taskId?: string;
  readonly statuses?: readonly TrajectoryStatus[];
  readonly labels?: ReadonlyMap<string, string>;
  readonly parentId?: string;
  readonly branchPoint?: bigint;
  readonly treeId?: string;
  readonly rootsOnly?: boolean;
  /** Selects only trajectories without a run. */
  readonly withoutRun?: boolean;
  readonly name?: string;
  /** Part of the name or of the value of a label, in any case of ASCII letters. */
  readonly text?: string;
  readonly createTimeFrom?: Instant;
  readonly createTimeTo?: Instant;
  readonly runId?: string;
  readonly experimentId?: string;
  /** Number of its steps, inherited ones included. Inclusive bounds. */
  readonly minLength?: bigint;
  readonly maxLength?: bigint;
  /** Inclusive bounds. NaN never matches (W11). */
  readonly minRewardSum?: number;
  readonly maxRewardSum?: number;
  /** Requires an own step that has all these labels. Only `orderTrajectories` reads it. */
  readonly stepLabels?: ReadonlyMap<string, string>;
  /** The part that a trajectory belongs to (`isInShard`). Only `orderTrajectories` reads it. */
  readonly shard?: { readonly index: number; readonly count: number };
}

/** Ties are broken by creation. A sum that is NaN comes last in both directions. `REQUESTED` needs a filter by ids. */
export interface TrajectorySort {
  readonly by: 'CREATION' | 'REWARD_SUM' | 'REQUESTED';
  readonly descending: boolean;
}

/** Row key of a trajectory, and what the order compares: its reward sum, or the index of its id among the requested. */
export interface TrajectoryPlace {
  readonly key: bigint;
  readonly rank: number;
}

/** A trajectory with the stored size of its steps, uncompressed and without states. */
export type SizedTrajectory = {
  readonly trajectory: Trajectory;
  readonly stepBytes: number;
  readonly ownBytes: number;
};

export interface TrajectoryChanges extends Partial<TrajectorySettings> {
  readonly metrics?: ReadonlyMap<string, number>;
}

/** Id and name of a trajectory of a lineage. */
export type Owner = { readonly id: string; readonly name: string; readonly hidden: boolean };

/** A trajectory of a lineage. */
export interface Ancestor extends Link, Owner {}

export type OnBranches = 'REFUSE' | 'CASCADE' | 'KEEP_SHARED';

export interface Deletion {
  /** Number of trajectories that this call deleted permanently. */
  readonly purged: bigint;
  /** Whether the trajectory is hidden but kept, because branches need its steps. */
  readonly keptShared: boolean;
  /** Keys of the deleted trajectories, for caches and followers. */
  readonly keys: readonly bigint[];
}

/** B5: names for own and inherited steps of a trajectory, unique per trajectory. */
export interface TagStore {
  /**
   * Sets or moves a tag, under a lock against deletion. `expected` is the required current step: -1 if the tag must not
   * exist, undefined for no condition.
   * Errors: TRAJECTORY_NOT_FOUND, STEP_NOT_FOUND, TAG_MOVED.
   */
  setTag(
    namespace: string,
    trajectoryId: string,
    name: string,
    stepNumber: bigint,
    expected: bigint | undefined,
  ): Promise<Tag>;
  /** Errors: TRAJECTORY_NOT_FOUND, TAG_NOT_FOUND. */
  getTag(namespace: string, trajectoryId: string, name: string): Promise<Tag>;
  /**
   * Lists tags by name in order of bytes, or only the one with this name. The cursor is the last name. Errors:
   * TRAJECTORY_NOT_FOUND.
   */
  listTags(namespace: string, trajectoryId: string, page: Page<string>, name?: string): Promise<Tag[]>;
  /** Returns the first 16 tags by name of each of these trajectories of a tree. Omits those without tags. */
  readTreeTags(namespace: string, tree: bigint, keys: readonly bigint[]): Promise<ReadonlyMap<bigint, readonly Tag[]>>;
  /** Errors: TRAJECTORY_NOT_FOUND, TAG_NOT_FOUND. */
  deleteTag(namespace: string, trajectoryId: string, name: string): Promise<void>;
}

export interface Tag {
  readonly trajectoryId: string;
  readonly name: string;
  readonly stepNumber: bigint;
  readonly updateTime: Instant;
}
