import { type RawBuilder, sql } from 'kysely';
import type { Caller } from '../../../domain/caller.ts';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { AfterCommit, Db, Engine, Later, LockedHead, WriteOptions } from './engine.ts';

/** What reads of one namespace need. Outside of transactions, `db` sees committed rows only. */
export interface ReadScope<E extends Engine = Engine> {
  readonly engine: E;
  readonly db: Db;
  readonly namespace: string;
}

/** Returns the scope of reads outside of transactions. */
export function scopeOf<E extends Engine>(engine: E, namespace: string): ReadScope<E> {
  return { engine, db: engine.db, namespace };
}

/** Time and change mark of a transaction, once they are read. All its namespaces and callers share them. */
interface Stamp {
  now: string | undefined;
  mark: bigint | undefined;
}

/**
 * One transaction of the database: its statements (`db`), and the time and change mark of the rows that it writes. A
 * retry of the work gets a new object.
 */
export class Transaction<E extends Engine = Engine> {
  readonly engine: E;
  readonly db: Db;
  readonly afterCommit: AfterCommit;
  readonly #stamp: Stamp;

  constructor(engine: E, db: Db, afterCommit: AfterCommit, stamp: Stamp = { now: undefined, mark: undefined }) {
    this.engine = engine;
    this.db = db;
    this.afterCommit = afterCommit;
    this.#stamp = stamp;
  }

  /** Returns the same transaction for rows of one namespace. */
  in(namespace: string): NamespaceTransaction<E> {
    return new NamespaceTransaction(this.engine, this.db, namespace, this.afterCommit, this.#stamp);
  }

  /** Returns the same transaction on behalf of a caller. */
  as(caller: Caller): CallerTransaction<E> {
    return new CallerTransaction(this.engine, this.db, caller, this.afterCommit, this.#stamp);
  }

  /**
   * The time that was read last, as text for time columns. Functions that stamp rows use it: their callers decide when
   * it is read.
   */
  get now(): string {
    if (this.#stamp.now === undefined) throw new Error('the time of this transaction was not read');
    return this.#stamp.now;
  }

  /** Mark that `readMark` has read. */
  get mark(): bigint {
    if (this.#stamp.mark === undefined) throw new Error('the change mark of this transaction was not read');
    return this.#stamp.mark;
  }

  /**
   * Reads the time of the database. Call it after the rows to be stamped are locked: then no earlier change of them has
   * a later time. Each call reads anew, because a transaction that takes further locks needs a later time.
   */
  async readNow(): Promise<string> {
    this.#stamp.now = await readNow(this.db, this.engine.sql.now);
    return this.#stamp.now;
  }

  /** Returns the mark for the rows that this transaction changes (see `Changes.mark`). Reads it once. */
  async readMark(): Promise<bigint> {
    this.#stamp.mark ??= await this.engine.changes.mark(this.db);
    return this.#stamp.mark;
  }

  /** Sets time and mark, which a statement has returned together. */
  stamp(now: string, mark: bigint): void {
    this.#stamp.now = now;
    this.#stamp.mark = mark;
  }

  /** Locks the heads of trajectories (see `Locks.heads`). Reads the time under these locks, if there are any. */
  async lockHeads(refs: readonly TrajectoryRef[], wait: 'never' | 'bounded'): Promise<LockedHead[]> {
    const { heads, now } = await this.engine.locks.heads(this.db, refs, wait);
    if (heads.length > 0) this.#stamp.now = now;
    return heads;
  }
}

/** A transaction for rows of one namespace. */
export class NamespaceTransaction<E extends Engine = Engine> extends Transaction<E> implements ReadScope<E> {
  readonly namespace: string;

  constructor(engine: E, db: Db, namespace: string, afterCommit: AfterCommit, stamp?: Stamp) {
    super(engine, db, afterCommit, stamp);
    this.namespace = namespace;
  }
}

/** A transaction on behalf of a caller, whom StatusChanges name. */
export class CallerTransaction<E extends Engine = Engine> extends NamespaceTransaction<E> {
  readonly caller: Caller;

  constructor(engine: E, db: Db, caller: Caller, afterCommit: AfterCommit, stamp?: Stamp) {
    super(engine, db, caller.namespace, afterCommit, stamp);
    this.caller = caller;
  }
}

/** Runs `work` in one transaction (see `Transactions.run`). */
export function write<E extends Engine, T>(
  engine: E,
  work: (tx: Transaction<E>) => Promise<T | Later<T>>,
  options?: WriteOptions,
): Promise<T> {
  return engine.transactions.run((db, after) => work(new Transaction(engine, db, after)), options);
}

/** Runs `work` in one transaction for rows of a namespace. */
export function writeIn<E extends Engine, T>(
  engine: E,
  namespace: string,
  work: (tx: NamespaceTransaction<E>) => Promise<T | Later<T>>,
): Promise<T> {
  return engine.transactions.run((db, after) => work(new NamespaceTransaction(engine, db, namespace, after)));
}

/** Runs `work` in one transaction on behalf of a caller. */
export function writeAs<E extends Engine, T>(
  engine: E,
  caller: Caller,
  work: (tx: CallerTransaction<E>) => Promise<T | Later<T>>,
): Promise<T> {
  return engine.transactions.run((db, after) => work(new CallerTransaction(engine, db, caller, after)));
}

/** Returns the time of the database as text for time columns. */
export async function readNow(db: Db, now: RawBuilder<string>): Promise<string> {
  const { rows } = await sql<{ now: string }>`select ${now} as now`.execute(db);
  const row = rows[0];
  if (row === undefined) throw new Error('the database returned no time');
  return row.now;
}

/** Runs deletes within a tree one at a time (B2): waits for the others. */
export function lockTrees({ engine, db }: Transaction, trees: readonly bigint[]): Promise<void> {
  return engine.locks.names(
    db,
    trees.map((tree) => `trees/${tree}`),
  );
}

/**
 * Serialises successes in groups with CANCEL_PENDING and decisions to requeue rollouts of these groups, so that they
 * see each other. The rows of groups cannot be locked for this: transactions that hold a sibling lock them last, and a
 * success locks the siblings afterwards.
 */
export function lockPolicies({ engine, db }: Transaction, groups: readonly bigint[]): Promise<void> {
  return engine.locks.names(
    db,
    groups.map((group) => `policies/${group}`),
  );
}

/**
 * Runs statements of one transaction that do not need each other's results. Sent back to back, they cost one round
 * trip, and run in this order. Waits for all of them even if one fails, so that none runs after the transaction.
 * Rejects with the first failure.
 */
export async function inOneRoundTrip<T extends readonly unknown[] | []>(
  work: T,
): Promise<{ -readonly [P in keyof T]: Awaited<T[P]> }> {
  const all = Promise.all(work);
  // The failure is awaited below. Until then it must not count as unhandled.
  all.catch(() => {});
  await Promise.allSettled(work);
  return all;
}
