import type { CompiledQuery, Expression, Kysely, RawBuilder, Selectable, SqlBool } from 'kysely';
import type { Change } from '../../../domain/change.ts';
import type { Digest } from '../../../domain/ids.ts';
import type { TrajectoryStatus } from '../../../domain/lifecycle.ts';
import type { TreeRange } from '../../../domain/lineage.ts';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { Horizon } from '../../contract/run.ts';
import type { CallScope, Slots } from '../../contract/store.ts';
import type { Aggregates } from './aggregates.ts';
import type { Compressor } from './compressor.ts';
import type { KeptQueries } from './kept_queries.ts';
import type { PointBatch } from './point_batch.ts';
import type { Sums } from './running_sums.ts';
import type { SeriesRange } from './series_range.ts';
import type { SegmentRow } from './tables/steps.ts';
import type { Row, RowOf, RowUpdate, Table } from './tables/table.ts';
import type { RolloutsTable, Tables } from './tables.ts';

export type Db = Kysely<Tables>;
/** Runs the statements of a transaction. */
export type Tx = Kysely<Tables>;

/**
 * Result of a transaction that has sent all its statements (`ask`). The commit is sent without waiting for the answers
 * that the value is computed from.
 */
export class Later<T> {
  readonly value: Promise<T>;

  constructor(value: Promise<T>) {
    // The value is awaited only after the commit. A failure before that must not count as unhandled.
    value.catch(() => {});
    this.value = value;
  }
}

/** Row lock, held until the transaction ends. Weaker locks block fewer transactions. */
export type RowLock =
  /** For deletion: waits for all other locks of the row. */
  | 'delete'
  /** For changes of the row: does not block branches of it. */
  | 'write'
  /** Prevents deletion of the row: does not block its writer. */
  | 'keep';

/** Operations that differ between the engines. All other code of the store is shared. */
export interface Engine {
  readonly description: string;
  readonly lost: AbortSignal | undefined;

  /**
   * Returns this engine for one call: its statements are cancelled when the call ends and then reject with the signal's
   * reason. Without a call, returns the engine for work that outlives calls.
   */
  within(call: CallScope | undefined): Engine;

  /**
   * Returns this engine for reads that always use indexes. Full scans and sorts are disabled, because missing
   * statistics or cached plans of small tables could select them.
   */
  byIndex(): Engine;

  /** For reads: sees committed rows only. */
  readonly db: Db;
  /** Current time of the database, as a value for a time column. */
  readonly now: RawBuilder<string>;

  /** Name of a table in raw SQL, with its schema if the engine uses one. */
  table(name: keyof Tables, isBounded?: boolean): RawBuilder<unknown>;

  /** Bytes column as hexadecimal text, which drivers read faster than bytes. */
  hex(column: RawBuilder<unknown>): RawBuilder<string>;

  /** The elements of a JSON list as a table with the column `value`, for a `from` clause. The column has JSON text. */
  jsonElements(column: RawBuilder<unknown>): RawBuilder<unknown>;

  /**
   * Reads rows as arrays, with integers as numbers. Rejects integers beyond 2^53. Costs half as much as objects with
   * bigints.
   */
  rows<Row extends readonly unknown[]>(query: RawBuilder<unknown> | CompiledQuery<unknown>): Promise<Row[]>;

  /**
   * Returns the rows of each query, all read from one snapshot: no query sees a commit that another one does not see.
   */
  readSnapshot<const Rows extends readonly object[]>(queries: QueriesOf<Rows>): Promise<RowsOf<Rows>>;

  /** Frequent queries, compiled once for this engine. */
  readonly kept: KeptQueries;

  /** Compresses rows of steps. */
  readonly compressor: Compressor;

  /**
   * Runs `work` in one transaction, which is durable when the promise resolves. Retries after a deadlock, so `work`
   * must not keep state between runs.
   */
  write<T>(work: (tx: Tx) => Promise<T | Later<T>>, options?: WriteOptions): Promise<T>;

  /**
   * Runs one transaction of a long deletion, with what prepares it, then lets other work run. If transactions share a
   * thread and others write, it pauses in proportion to the time that this took.
   */
  giveWayAfter<T>(transaction: () => Promise<T>): Promise<T>;

  /** Adds a row lock to a select. SQLite needs none, because one transaction writes at a time. */
  lock<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q;

  /** Like `lock`, but does not wait: leaves out the rows that other transactions hold. */
  lockFree<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q;

  /** Waits for other transactions that have locked one of these names, and locks them in this order. */
  lockNames(tx: Tx, names: readonly string[]): Promise<void>;

  /** Returns a new row key, which is never reused. */
  nextKey(tx: Tx, table: KeyedTable): Promise<bigint>;
  /** Returns `count` new row keys in ascending order. */
  nextKeys(tx: Tx, table: KeyedTable, count: number): Promise<bigint[]>;

  /**
   * Returns the mark for rows that this transaction changes. A watcher with an older horizon finds rows with this mark
   * (`changedSince`).
   */
  changeMark(tx: Tx): Promise<bigint>;

  /** Returns the set of committed changes. Must be read before the rows. */
  readHorizon(): Promise<Horizon>;

  /**
   * Returns conditions on a mark. One of them holds if the change was not committed at the horizon. They exclude each
   * other, are in order of marks, and each can be served by an index.
   */
  changedSince(mark: RawBuilder<unknown>, since: Horizon): RawBuilder<SqlBool>[];

  /**
   * Locks the rows of trajectories in order of key, and reads their heads and the time. Omits rows that do not exist
   * and, with `never`, rows that other transactions hold.
   */
  lockHeads(
    tx: Tx,
    refs: readonly TrajectoryRef[],
    wait: 'never' | 'bounded',
  ): Promise<{ readonly heads: LockedHead[]; readonly now: string }>;

  /**
   * Returns those of the states that are stored. `digests` must be distinct.
   * - `lock` locks them for writing, in order of digest.
   * - `refer` locks nothing, and makes `outwaitReferrers` wait for this transaction.
   */
  findStates(tx: Tx, namespace: string, digests: readonly Digest[], purpose: 'refer' | 'lock'): Promise<FoundState[]>;

  /**
   * Locks states for writing, in order of digest, and marks them as referenced. Returns the digests that are stored.
   */
  referToStates(tx: Tx, namespace: string, digests: readonly Digest[]): Promise<Digest[]>;

  /** From here on, a statement waits only briefly for a lock and then fails with `Contended`. */
  waitBriefly(tx: Tx): Promise<void>;

  /**
   * Waits until every transaction has ended that has called `findStates` with `refer` so far. Returns false if one has
   * not ended after some seconds.
   */
  outwaitReferrers(): Promise<boolean>;

  /**
   * Inserts rows in the order given, in few statements or fast ones. `onConflict` is the end of the statement (`on
   * conflict …`), for rows that may exist already.
   */
  insertRows<T extends Table>(tx: Tx, table: T, rows: readonly RowOf<T>[], onConflict?: string): Promise<void>;

  /** Updates many rows, in one statement or fast ones. */
  updateRows<Updated extends Row>(tx: Tx, update: RowUpdate<Updated>, rows: readonly NoInfer<Updated>[]): Promise<void>;

  /** Condition that a column has one of these values. The text of the statement does not depend on their number. */
  among(column: RawBuilder<unknown>, keys: readonly bigint[]): RawBuilder<SqlBool>;

  /**
   * Returns the time and the change mark of a claim transaction. Disables sequential scans, sorts and replanning for
   * the rest of the transaction. Must be the first statement.
   */
  beginClaim(tx: Tx): Promise<{ readonly now: string; readonly mark: bigint }>;

  /**
   * Takes at most `limit` PENDING rollouts from these queues, ordered by priority and creation, each locked for
   * writing. Skips rollouts that other transactions hold (Q4, Q5). The cost does not grow with the length of the queue.
   */
  lockQueued(tx: Tx, queues: readonly Queue[], wanted: Wanted, limit: number): Promise<QueuedRow[]>;

  /**
   * Takes the next PENDING rollouts of one stage, found by name, without further filters. Returns none if the stage is
   * not claimable (Q4).
   */
  lockNext(tx: Tx, stage: StageName, limit: number): Promise<QueuedRow[]>;

  /**
   * Sends a query of the transaction immediately, after all earlier and before all later queries, even if its rows are
   * not awaited.
   */
  ask<Row>(tx: Tx, query: CompiledQuery<Row>): Promise<Row[]>;

  /**
   * Appends steps to trajectories in one round trip. Only engines with costly round trips have it. The statement locks
   * each row, compares it with `seen`, and appends to those that are equal. Sets the commit time, and ignores the one
   * of the segments. Returns it by row key. Nothing is written for a trajectory that is left out, because its row has
   * changed or is locked.
   */
  readonly appendSeen?: (appends: readonly SeenAppend[]) => Promise<ReadonlyMap<bigint, string>>;

  /**
   * M1: stores points if the run and all series exist, in order of identity. Returns false if nothing was stored. Uses
   * `tx`, or a transaction of its own that is durable when the promise resolves.
   */
  upsertPoints(batch: PointBatch, tx?: Tx): Promise<boolean>;

  /** Returns the extrema of ranges of a series, in the order of the ranges. NaN points are ignored. */
  readExtrema(series: bigint, ranges: readonly SeriesRange[]): Promise<RangeExtrema[]>;

  /** Condition that a column of JSON text (an object of strings) contains this pair. */
  hasPair(column: Expression<string>, key: string, value: string): Expression<SqlBool>;

  /** Whether a column of JSON text, an array of strings, has this item. */
  hasItem(column: Expression<string>, item: string): Expression<SqlBool>;

  /** Returns a select of the rows `(tree, key, from, to)`. Its text is the same for any number of ranges. */
  selectRanges(ranges: readonly TreeRange[]): RawBuilder<unknown>;

  readonly aggregates: Aggregates;

  readonly slots: Slots;

  /** `time` minus a number of hours, to compare with a time column. */
  hoursAgo(hours: number): RawBuilder<string>;

  /**
   * Notifies listeners here and in other instances of changes. Notifications are hints: they are coalesced and not
   * awaited. A trajectory and a run may share a key; the
   * other one is then read without need.
   */
  announce(changes: readonly Change[]): void;
  /**
   * Calls the listener for changes in this and other instances; undefined means that anything may have changed. Returns
   * a function that removes the listener.
   */
  onChange(listener: (change: Change | undefined) => void): () => void;

  /**
   * Lets the database check the pages of its tables and the entries of its indexes, one table after the other, off the
   * serving thread. Returns what is wrong.
   */
  checkDatabase(): AsyncGenerator<readonly string[], void, undefined>;

  /** Returns whether the database could not read what it has stored. */
  isDamage(error: unknown): boolean;

  /** Copies the log into the database file, when no read of this process needs it. Only SQLite has both. */
  emptyLog?(): Promise<void>;

  close(): Promise<void>;
}

export type QueriesOf<Rows extends readonly object[]> = { readonly [I in keyof Rows]: CompiledQuery<Rows[I]> };
export type RowsOf<Rows extends readonly object[]> = { -readonly [I in keyof Rows]: Rows[I][] };

/** Tables whose rows have keys of their own. */
export type KeyedTable = 'trajectories' | 'experiments' | 'runs' | 'stages' | 'metric_series' | RolloutTable;
type RolloutTable = 'tasks' | 'validators' | 'groups' | 'rollouts' | 'environments';

/** PENDING rollouts of a stage: all of them, or those of one task. */
export interface Queue {
  readonly stage: bigint;
  readonly task: bigint | null;
}

/** A stage as callers name it. */
export interface StageName {
  readonly namespace: string;
  readonly id: string;
}

/** Filter on queued rollouts. */
export interface Wanted {
  readonly labels: ReadonlyMap<string, string>;
  readonly minPriority: number;
  /** Keys of rollouts to exclude. */
  readonly except: readonly bigint[];
}

/**
 * A rollout from a queue, with immutable columns of other tables that a claim returns, and a key for the trajectory of
 * its attempt.
 */
export interface QueuedRow extends Selectable<RolloutsTable> {
  readonly group_id: string;
  readonly task_id: string | null;
  readonly next_trajectory: bigint;
}

export interface WriteOptions {
  /** Disables the statement timeout, because the time of a deletion grows with the number of rows. */
  readonly unbounded?: boolean;
}

/**
 * Smallest and largest number of a range, each at the first step that has it. Both are undefined if the range has no
 * numbers.
 */
export interface RangeExtrema {
  readonly lowest?: SeriesPoint;
  readonly highest?: SeriesPoint;
}

export interface SeriesPoint {
  readonly metricStep: bigint;
  readonly value: number;
}

/** Methods of Kysely's select that `lock` needs. */
export interface LockableQuery<Q> {
  forUpdate(): Q;
  forNoKeyUpdate(): Q;
  forKeyShare(): Q;
  skipLocked(): Q;
}

/** Columns of a locked trajectory that appends need. */
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
  readonly scoredMetrics: readonly string[];
  readonly sums: Sums;
}

/** Columns that a decision to append depends on. All other columns that it reads never change. */
export interface SeenHead {
  readonly tree: bigint;
  readonly key: bigint;
  readonly nextStepNumber: bigint;
  readonly writerEpoch: bigint;
}

/** New steps of a trajectory. */
export interface SeenAppend {
  readonly seen: SeenHead;
  /** End and sums of the trajectory after them. */
  readonly end: bigint;
  readonly sums: Sums;
  readonly segments: readonly SegmentRow[];
}

/** A stored state without its bytes. */
export interface FoundState {
  readonly digest: Digest;
  readonly size: number;
  readonly referenced: boolean;
}
