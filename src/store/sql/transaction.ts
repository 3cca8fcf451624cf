import { type RawBuilder, sql } from 'kysely';
import type { Caller } from '../../domain/caller.ts';
import type { Db, Engine, Later, WriteOptions } from './engine.ts';

/** What reads of one namespace need. Outside of transactions, `db` sees committed rows only. */
export interface ReadScope {
  readonly engine: Engine;
  readonly db: Db;
  readonly namespace: string;
}

/** Returns the scope of reads outside of transactions. */
export function scopeOf(engine: Engine, namespace: string): ReadScope {
  return { engine, db: engine.db, namespace };
}

/** What was read once for a transaction, for all its namespaces and callers. */
interface Clock {
  now: string | undefined;
  mark: Promise<bigint> | undefined;
}

/**
 * One transaction of the database: its statements (`db`), its time and its change mark. Lives as long as the
 * transaction: a retry gets a new one.
 */
export class Transaction {
  readonly engine: Engine;
  readonly db: Db;
  private readonly clock: Clock;

  constructor(engine: Engine, db: Db, clock: Clock = { now: undefined, mark: undefined }) {
    this.engine = engine;
    this.db = db;
    this.clock = clock;
  }

  /** Returns the same transaction for rows of one namespace. */
  in(namespace: string): NamespaceTransaction {
    return new NamespaceTransaction(this.engine, this.db, namespace, this.clock);
  }

  /** Returns the same transaction on behalf of a caller. */
  as(caller: Caller): CallerTransaction {
    return new CallerTransaction(this.engine, this.db, caller, this.clock);
  }

  /**
   * The time of the changes of this transaction, as text for time columns. It must have been read before, and is that
   * of the latest read.
   */
  get now(): string {
    if (this.clock.now === undefined) throw new Error('the time of the transaction was not read');
    return this.clock.now;
  }

  /**
   * Reads the time of the database. Must be called after the locks of the rows that are stamped with it: then no change
   * that another transaction has made to them has a later time.
   */
  async readNow(): Promise<string> {
    this.clock.now = await readNow(this.db, this.engine.now);
    return this.clock.now;
  }

  /** Returns the mark for rows that this transaction changes (see `Engine.changeMark`). */
  readMark(): Promise<bigint> {
    this.clock.mark ??= this.engine.changeMark(this.db);
    return this.clock.mark;
  }
}

/** A transaction for rows of one namespace. */
export class NamespaceTransaction extends Transaction implements ReadScope {
  readonly namespace: string;

  constructor(engine: Engine, db: Db, namespace: string, clock?: Clock) {
    super(engine, db, clock);
    this.namespace = namespace;
  }
}

/** A transaction on behalf of a caller, whom StatusChanges name. */
export class CallerTransaction extends NamespaceTransaction {
  readonly caller: Caller;

  constructor(engine: Engine, db: Db, caller: Caller, clock?: Clock) {
    super(engine, db, caller.namespace, clock);
    this.caller = caller;
  }
}

/** Runs `work` in one transaction (see `Engine.write`). */
export function write<T>(
  engine: Engine,
  work: (tx: Transaction) => Promise<T | Later<T>>,
  options?: WriteOptions,
): Promise<T> {
  return engine.write((db) => work(new Transaction(engine, db)), options);
}

/** Runs `work` in one transaction for rows of a namespace. */
export function writeIn<T>(
  engine: Engine,
  namespace: string,
  work: (tx: NamespaceTransaction) => Promise<T | Later<T>>,
): Promise<T> {
  return engine.write((db) => work(new NamespaceTransaction(engine, db, namespace)));
}

/** Runs `work` in one transaction on behalf of a caller. */
export function writeAs<T>(
  engine: Engine,
  caller: Caller,
  work: (tx: CallerTransaction) => Promise<T | Later<T>>,
): Promise<T> {
  return engine.write((db) => work(new CallerTransaction(engine, db, caller)));
}

/** Returns the time of the database as text for time columns. */
export async function readNow(db: Db, now: RawBuilder<string>): Promise<string> {
  const { rows } = await sql<{ now: string }>`select ${now} as now`.execute(db);
  const row = rows[0];
  if (row === undefined) throw new Error('the database returned no time');
  return row.now;
}
