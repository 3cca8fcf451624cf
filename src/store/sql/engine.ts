import type { CompiledQuery, Expression, Kysely, RawBuilder, Selectable, SqlBool } from 'kysely';
import type { Digest } from '../../domain/ids.ts';
import type { TrajectoryStatus } from '../../domain/lifecycle.ts';
import type { Segment } from '../../domain/lineage.ts';
import type { TrajectoryRef } from '../../domain/trajectory.ts';
import type { Horizon } from '../contract/run.ts';
import type { CallScope, Turns } from '../contract/store.ts';
import type { Aggregates } from './aggregates.ts';
import type { KeptQueries } from './kept_queries.ts';
import type { PointBatch } from './point_batch.ts';
import type { EncodedState } from './state_bytes.ts';
import type { StepRow } from './step_row.ts';
import type { Stretch } from './stretches.ts';
import type { ColumnOf, RolloutsTable, StoredTable, Tables } from './tables.ts';

export type Db = Kysely<Tables>;
/** What a transaction runs its statements on. */
export type Tx = Kysely<Tables>;

/**
 * What the work of a transaction gives where all of its statements were sent (`ask`): it is committed behind them, without waiting for the answers that the
 * value is made of.
 */
export class Later<T> {
  readonly value: Promise<T>;

  constructor(value: Promise<T>) {
    // It is heard once the transaction is committed; until then a failure must not count as unhandled.
    value.catch(() => {});
    this.value = value;
  }
}

/** How a row is locked until the transaction ends. Weaker ones let more go on beside them. */
export type RowLock =
  /** Deletes, or waits for all that keep the row. */
  | 'delete'
  /** Writes the row; branches of it go on. */
  | 'write'
  /** Keeps the row from being deleted; its writer goes on. */
  | 'keep';

/** What differs between the engines. Everything else of the store is written once, over this. */
export interface Engine {
  readonly description: string;

  /**
   * Returns this engine for one call: its statements end when the call does, and what runs them rejects with the signal's reason. Without a call,
   * returns the engine for work that does not end with the call.
   */
  within(call: CallScope | undefined): Engine;

  /**
   * Returns this engine for reads that find every row by an index, in its order. They never read a whole table or sort what an index has sorted, also where
   * statistics are missing or a plan was kept since tables were small.
   */
  byIndex(): Engine;

  /** For reads: shows committed rows only. */
  readonly db: Db;
  /** The time of the database, as a value for a time column. */
  readonly now: RawBuilder<string>;

  /** A table's name for raw SQL, with its schema where the engine has one. */
  table(name: keyof Tables): RawBuilder<unknown>;

  /** A column of bytes as hexadecimal text, which costs less to read than bytes. */
  hex(column: RawBuilder<unknown>): RawBuilder<string>;

  /** Reads rows as arrays and whole numbers as numbers, refusing those beyond 2^53: half the cost of objects with bigints. */
  rows<Row extends readonly unknown[]>(query: RawBuilder<unknown> | CompiledQuery<unknown>): Promise<Row[]>;

  /** Returns the rows of each query, all read from one snapshot: no query sees a commit that another one does not see. */
  readSnapshot<const Rows extends readonly object[]>(queries: QueriesOf<Rows>): Promise<RowsOf<Rows>>;

  /** Queries that are asked often, in this engine's words. */
  readonly kept: KeptQueries;

  /** Runs `work` in one transaction, durable when it resolves; may run it again after a deadlock, so it must keep nothing across calls. */
  write<T>(work: (tx: Tx) => Promise<T | Later<T>>, options?: WriteOptions): Promise<T>;

  /**
   * Runs one of the many transactions of a long deletion, then lets other work go on: the event loop turns, and where transactions share a thread it pauses
   * for as long as the transaction took if there are other writers.
   */
  giveWayAfter<T>(transaction: () => Promise<T>): Promise<T>;

  /** Adds the lock to a select. SQLite, where one transaction writes at a time, needs none. */
  lock<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q;

  /** Like `lock`, but does not wait: leaves out the rows that other transactions hold. */
  lockFree<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q;

  /** Deletes within a tree run one at a time (B2): waits for the others. */
  lockTree(tx: Tx, tree: bigint): Promise<void>;

  /** A new row key, never given before. */
  nextKey(tx: Tx, table: KeyedTable): Promise<bigint>;
  /** So many of them, rising. */
  nextKeys(tx: Tx, table: KeyedTable, count: number): Promise<bigint[]>;

  /**
   * What to mark rows with that this transaction changes, for those who watch: whoever looks from a horizon on that was read before it committed
   * finds them.
   */
  changeMark(tx: Tx): Promise<bigint>;

  /** Returns what is committed now. Read before the rows themselves. */
  readHorizon(): Promise<Horizon>;

  /**
   * Returns conditions on a mark, one of which holds if its change was not committed at the horizon. They exclude each other, come in order of marks, and
   * each is a range of marks, one mark, or a list of marks that an index serves.
   */
  changedSince(mark: RawBuilder<unknown>, since: Horizon): RawBuilder<SqlBool>[];

  /**
   * Locks the rows of trajectories, in order of their keys, and reads their heads and the time. Rows that are not there are left out; so are, with
   * `never`, those that others hold.
   */
  lockHeads(
    tx: Tx,
    refs: readonly TrajectoryRef[],
    wait: 'never' | 'bounded',
  ): Promise<{ readonly heads: LockedHead[]; readonly now: string }>;

  /**
   * Returns those of the states that are stored. `lock`: locks them for writing, in order of digest. `refer`: locks none, and lets
   * `outwaitReferrers` wait for this transaction. `digests` are distinct.
   */
  findStates(tx: Tx, namespace: string, digests: readonly Digest[], purpose: 'refer' | 'lock'): Promise<FoundState[]>;

  /** Inserts states, referenced, in the order given. A state that is stored already is locked, and marked as referenced. */
  insertStates(tx: Tx, states: readonly NewStateRow[]): Promise<void>;

  /** Locks states for writing, in order of digest, and marks them as referenced. Returns the digests of those that are stored. */
  referToStates(tx: Tx, namespace: string, digests: readonly Digest[]): Promise<Digest[]>;

  /** From here on, the transaction waits for locks only for a moment, then fails with `Contended`. */
  waitBriefly(tx: Tx): Promise<void>;

  /**
   * Waits until all transactions have ended that have found states to refer to by now. Returns false if one of them has not ended after
   * some seconds.
   */
  outwaitReferrers(): Promise<boolean>;

  /** Inserts rows (values in the order of `columns`), in few statements or fast ones. */
  insertRows<T extends StoredTable>(
    tx: Tx,
    table: T,
    columns: readonly ColumnOf<T>[],
    rows: readonly (readonly unknown[])[],
  ): Promise<void>;

  /**
   * Sets `columns` of the rows that are found by `keys`, in one statement or fast ones: each of `rows` has the values of the keys, then those of the
   * columns. For tables whose rows change by the hundred.
   */
  updateRows<T extends ManyRowsTable>(
    tx: Tx,
    table: T,
    keys: readonly ColumnOf<T>[],
    columns: readonly ColumnOf<T>[],
    rows: readonly (readonly unknown[])[],
  ): Promise<void>;

  /** Whether a column has one of these values, in one statement's text however many they are. */
  among(column: RawBuilder<unknown>, keys: readonly bigint[]): RawBuilder<SqlBool>;

  /**
   * The time, and the mark of changes, of a transaction that takes from queues. In it, whatever an index can give is read by it, in its order and only as far
   * as is needed, also where statistics are old, and statements are not planned anew: that holds for what is sent behind it, so it goes first.
   */
  beginClaim(tx: Tx): Promise<{ readonly now: string; readonly mark: bigint }>;

  /**
   * Takes at most `limit` PENDING rollouts out of these queues, by priority, then creation, each locked for writing; those that others hold are passed
   * over (Q4, Q5). Costs the same however much is queued.
   */
  lockQueued(tx: Tx, queues: readonly Queue[], wanted: Wanted, limit: number): Promise<QueuedRow[]>;

  /** The same out of one stage, whatever comes next, found by its name, if it may be claimed from as it is now (Q4). */
  lockNext(tx: Tx, stage: StageName, limit: number): Promise<QueuedRow[]>;

  /** Sends a query of the transaction at once: behind what was sent before, and before what is sent later, whether or not its rows are waited for. */
  ask<Row>(tx: Tx, query: CompiledQuery<Row>): Promise<Row[]>;

  /** Moves the heads of trajectories, in few statements or fast ones. */
  updateHeads(tx: Tx, heads: readonly HeadRow[]): Promise<void>;

  /**
   * Where a transaction costs round trips: one step for one trajectory, in one. The statement that writes takes the row's lock, compares the row with
   * `seen` under it, and writes only if they are equal. The time of the commit; undefined: the row has changed or somebody holds it, and
   * nothing was written.
   */
  readonly appendOne?: (seen: SeenHead, row: StepRow) => Promise<string | undefined>;

  /**
   * M1: stores points where the run and all series are there, in order of identity; false: nothing is stored. In the transaction given, or in one of its own,
   * durable when it resolves.
   */
  upsertPoints(batch: PointBatch, tx?: Tx): Promise<boolean>;

  /** Returns the extrema of stretches of a series, in the order of the stretches. NaN points are ignored. */
  readExtrema(series: bigint, stretches: readonly Stretch[]): Promise<StretchExtrema[]>;

  /** Whether a column of JSON text, an object of strings, has this pair. */
  hasPair(column: Expression<string>, key: string, value: string): Expression<SqlBool>;

  /** Whether a column of JSON text, an array of strings, has this item. */
  hasItem(column: Expression<string>, item: string): Expression<SqlBool>;

  /** Returns a select of the rows `(tree, key, from, to)`, one for each segment. Its text is the same for any number of segments. */
  selectSegments(tree: bigint, segments: readonly Segment[]): RawBuilder<unknown>;

  readonly aggregates: Aggregates;

  readonly turns: Turns;

  /** `time` minus so many hours, as a value to compare a time column with. */
  hoursAgo(hours: number): RawBuilder<string>;

  /**
   * Tells listeners here, and other instances (a hint: coalesced, not awaited), that trajectories or runs of these keys changed. One number may be the key of
   * both: a hint too many costs a read.
   */
  announce(keys: readonly bigint[]): void;
  /** Calls the listener for what is announced here or elsewhere; undefined: anything may have changed. Returns how to stop. */
  onChange(listener: (key: bigint | undefined) => void): () => void;

  close(): Promise<void>;
}

export type QueriesOf<Rows extends readonly object[]> = { readonly [I in keyof Rows]: CompiledQuery<Rows[I]> };
export type RowsOf<Rows extends readonly object[]> = { -readonly [I in keyof Rows]: Rows[I][] };

/** Tables whose rows have keys of their own. */
export type KeyedTable = 'trajectories' | 'experiments' | 'runs' | 'stages' | 'metric_series' | RolloutTable;
type RolloutTable = 'tasks' | 'validators' | 'groups' | 'rollouts' | 'environments';

/** Tables that `updateRows` knows. */
export type ManyRowsTable = 'rollouts' | 'attempts';

/** What of a stage is PENDING: all of it, or of one task. */
export interface Queue {
  readonly stage: bigint;
  readonly task: bigint | null;
}

/** A stage as callers name it. */
export interface StageName {
  readonly namespace: string;
  readonly id: string;
}

/** What is wanted of the queues. */
export interface Wanted {
  readonly labels: ReadonlyMap<string, string>;
  readonly minPriority: number;
  /** Keys of rollouts to leave. */
  readonly except: readonly bigint[];
}

/** A rollout out of a queue, with what a claim tells of others that never changes, and a key that its attempt's trajectory may have. */
export interface QueuedRow extends Selectable<RolloutsTable> {
  readonly group_id: string;
  readonly task_id: string | null;
  readonly next_trajectory: bigint;
}

export interface WriteOptions {
  /** No bound on how long a statement may take: for deletes, which grow with what they delete. */
  readonly unbounded?: boolean;
}

/** The smallest and the largest number of a stretch, each at the first step that has it. A stretch without numbers has neither. */
export interface StretchExtrema {
  readonly lowest?: SeriesPoint;
  readonly highest?: SeriesPoint;
}

export interface SeriesPoint {
  readonly metricStep: bigint;
  readonly value: number;
}

/** The part of Kysely's select that locking needs. */
export interface LockableQuery<Q> {
  forUpdate(): Q;
  forNoKeyUpdate(): Q;
  forKeyShare(): Q;
  skipLocked(): Q;
}

/** A trajectory's row under its lock, as far as appending needs it. */
export interface LockedHead extends TrajectoryRef {
  readonly namespace: string;
  readonly uid: string;
  readonly hidden: boolean;
  readonly ownBegin: bigint;
  readonly status: TrajectoryStatus;
  readonly statusMessage: string;
  readonly sealTime: string | null;
  readonly writerId: string;
  readonly writerEpoch: bigint;
  readonly nextStepNumber: bigint;
  readonly rewardSum: number;
  readonly branchRewardSum: number | undefined;
  readonly byteSum: bigint;
}

/** What a decision to append rests on and can change; all else of a trajectory's row stays as it is for good. */
export interface SeenHead {
  readonly tree: bigint;
  readonly key: bigint;
  readonly nextStepNumber: bigint;
  readonly writerEpoch: bigint;
}

/** A stored state, without its bytes. */
export interface FoundState {
  readonly digest: Digest;
  readonly size: number;
  readonly referenced: boolean;
}

export interface NewStateRow extends EncodedState {
  readonly namespace: string;
  readonly now: string;
}

/** A trajectory's head after an append. */
export interface HeadRow {
  readonly tree: bigint;
  readonly key: bigint;
  readonly nextStepNumber: bigint;
  readonly rewardSum: number | string;
  readonly branchRewardSum: number | string | null;
  readonly byteSum: bigint;
  readonly status: string;
  readonly statusMessage: string;
  readonly updateTime: string;
  readonly sealTime: string | null;
}
