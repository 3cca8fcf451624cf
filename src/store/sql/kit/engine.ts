import type { CompiledQuery, Kysely, RawBuilder, SqlBool } from 'kysely';
import type { Hint } from '../../../domain/change.ts';
import type { TrajectoryStatus } from '../../../domain/lifecycle.ts';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { Horizon } from '../../contract/run.ts';
import type { CallScope, Slots } from '../../contract/store.ts';
import type { SegmentCompressor } from './compression.ts';
import type { Aggregates, Expressions } from './expressions.ts';
import type { KeptQueries } from './kept_queries.ts';
import type { Sums } from './running_sums.ts';
import type { Row, RowOf, RowUpdate, Table } from './tables/table.ts';
import type { Tables } from './tables.ts';

export type Db = Kysely<Tables>;
/** Runs the statements of a transaction. */
export type Tx = Kysely<Tables>;

/**
 * What all rooms use of an engine. Each member is a small interface that both engines implement. A function that needs
 * more asks for an engine that also has that member (`log/engine.ts`). All other code of the store is shared.
 */
export interface Engine {
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
  readonly reads: Reads;
  readonly sql: Expressions;
  readonly transactions: Transactions;
  readonly locks: Locks;
  readonly keys: Keys;
  readonly bulk: BulkRows;
  readonly changes: Changes;
  readonly aggregates: Aggregates;
  /** Frequent queries, compiled once for this engine. */
  readonly kept: KeptQueries;
  /** Compresses segments. */
  readonly compressor: SegmentCompressor;
  readonly slots: Slots;
}

/** Reads of committed rows that Kysely does not offer. */
export interface Reads {
  /**
   * Reads rows as arrays, with integers as numbers. Rejects integers beyond 2^53. Costs half as much as objects with
   * bigints.
   */
  rows<Row extends readonly unknown[]>(query: RawBuilder<unknown> | CompiledQuery<unknown>): Promise<Row[]>;

  /**
   * Returns the rows of each query, all read from one snapshot: no query sees a commit that another one does not see.
   */
  snapshot<const Rows extends readonly object[]>(queries: QueriesOf<Rows>): Promise<RowsOf<Rows>>;
}

export type QueriesOf<Rows extends readonly object[]> = { readonly [I in keyof Rows]: CompiledQuery<Rows[I]> };
export type RowsOf<Rows extends readonly object[]> = { -readonly [I in keyof Rows]: Rows[I][] };

export interface Transactions {
  /**
   * Runs `work` in one transaction, which is durable when the promise resolves, unless the options say otherwise.
   * Retries after a deadlock, so `work` must not keep state between runs.
   */
  run<T>(work: (tx: Tx, afterCommit: AfterCommit) => Promise<T | Later<T>>, options?: WriteOptions): Promise<T>;

  /**
   * Sends a query of the transaction immediately, after all earlier and before all later queries, even if its rows are
   * not awaited.
   */
  ask<Row>(tx: Tx, query: CompiledQuery<Row>): Promise<Row[]>;

  /**
   * Runs one transaction of a long deletion, with what prepares it, then lets other work run. If transactions share a
   * thread and others write, it pauses in proportion to the time that this took.
   */
  giveWayAfter<T>(transaction: () => Promise<T>): Promise<T>;
}

/**
 * Adds a step that runs once the transaction is committed, for what this process remembers of the rows. An engine that
 * runs one transaction at a time runs the steps together with COMMIT, before any other transaction or statement. Must
 * not throw.
 */
export type AfterCommit = (step: () => void) => void;

export interface WriteOptions {
  /** Disables the statement timeout, because the time of a deletion grows with the number of rows. */
  readonly unbounded?: boolean;
  /**
   * If false, the engine may commit without waiting for the log: a crash shortly after may undo the transaction, but
   * none that others have committed durably. Default: true.
   */
  readonly lasting?: boolean;
}

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

/** Locks that a transaction holds until it ends. SQLite needs none, because one transaction writes at a time. */
export interface Locks {
  /** Adds a row lock to a select. */
  rows<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q;

  /** Like `rows`, but does not wait: leaves out the rows that other transactions hold. */
  freeRows<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q;

  /** Waits for other transactions that have locked one of these names, and locks them in this order. */
  names(tx: Tx, names: readonly string[]): Promise<void>;

  /**
   * Locks the rows of trajectories in order of key, and reads their heads and the time. Omits rows that do not exist
   * and, with `never`, rows that other transactions hold.
   */
  heads(
    tx: Tx,
    refs: readonly TrajectoryRef[],
    wait: 'never' | 'bounded',
  ): Promise<{ readonly heads: LockedHead[]; readonly now: string }>;

  /** From here on, a statement waits only briefly for a lock and then fails with `Contended`. */
  waitBriefly(tx: Tx): Promise<void>;
}

/** Weaker locks of a row block fewer transactions. */
export type RowLock =
  /** For deletion: waits for all other locks of the row. */
  | 'delete'
  /** For changes of the row: does not block branches of it. */
  | 'write'
  /** Prevents deletion of the row: does not block its writer. */
  | 'keep';

/** Methods of Kysely's select that `Locks.rows` needs. */
export interface LockableQuery<Q> {
  forUpdate(): Q;
  forNoKeyUpdate(): Q;
  forKeyShare(): Q;
  skipLocked(): Q;
}

/** Columns of a locked trajectory that appends need. */
export interface LockedHead extends TrajectoryRef {
  readonly namespace: string;
  readonly id: string;
  readonly uid: string;
  readonly hidden: boolean;
  readonly ownBegin: bigint;
  readonly status: TrajectoryStatus;
  readonly statusMessage: string;
  readonly sealTime: string | null;
  readonly writerId: string;
  readonly writerEpoch: bigint;
  /** Principal of the writer. Empty: no writer was ever granted. */
  readonly writerActor: string;
  readonly nextStepNumber: bigint;
  readonly scoredMetrics: readonly string[];
  readonly sums: Sums;
}

/** Row keys, which are never reused. */
export interface Keys {
  next(tx: Tx, table: KeyedTable): Promise<bigint>;
  /** Returns `count` new keys in ascending order. */
  nextMany(tx: Tx, table: KeyedTable, count: number): Promise<bigint[]>;
}

/** Tables whose rows have keys of their own. */
export type KeyedTable = 'trajectories' | 'experiments' | 'runs' | 'stages' | 'metric_series' | RolloutTable;
type RolloutTable = 'tasks' | 'validators' | 'groups' | 'rollouts' | 'environments';

/** Writes many rows in few statements or fast ones. */
export interface BulkRows {
  /**
   * Inserts rows in the order given. `onConflict` is the end of the statement (`on conflict …`), for rows that may
   * exist already.
   */
  insert<T extends Table>(tx: Tx, table: T, rows: readonly RowOf<T>[], onConflict?: string): Promise<void>;
  update<Updated extends Row>(tx: Tx, update: RowUpdate<Updated>, rows: readonly NoInfer<Updated>[]): Promise<void>;
}

/** How watchers find what has changed. */
export interface Changes {
  /** Sends hints to listeners here and in other instances. They are coalesced and not awaited. */
  announce(hints: readonly Hint[]): void;

  /** See `ChangeStore`. */
  onChange(listener: (hint: Hint | undefined) => void): () => void;

  /** See `Store`. */
  onReplaced(listener: () => void): () => void;

  /** See `ChangeStore`. */
  readonly hearsOthers: boolean;

  /**
   * Returns the mark for rows that this transaction changes. A watcher with an older horizon finds rows with this mark
   * (`since`).
   */
  mark(tx: Tx): Promise<bigint>;

  /** The set of committed changes, as text. Must be read before the rows, or in one statement with them. */
  readonly horizon: RawBuilder<string>;

  /** Parses the text of `horizon`. */
  horizonOf(text: string): Horizon;

  /**
   * Returns conditions on a mark. One of them holds if the change was not committed at the horizon. They exclude each
   * other, are in order of marks, and each can be served by an index.
   */
  since(mark: RawBuilder<unknown>, horizon: Horizon): RawBuilder<SqlBool>[];
}
