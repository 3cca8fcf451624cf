import { type CompiledQuery, Kysely, PostgresDialect, type PostgresPool } from 'kysely';
import type { QueryResult } from 'pg';
import type { CallScope } from '../contract/store.ts';
import { type AfterCommit, Later, type Transactions, type Tx, type WriteOptions } from '../sql/kit/engine.ts';
import { nextIteration, type ReadSlots } from '../sql/kit/reading/slots.ts';
import type { Tables } from '../sql/kit/tables.ts';
import { isRetryable } from './errors.ts';
import type { Lease, Pool } from './pool.ts';
import { SCHEMA } from './schema.ts';

export interface TransactionsDeps {
  readonly pool: Pool;
  readonly open: OpenTransactions;
  readonly slots: ReadSlots;
}

/** Transactions of one call, or of work that outlives calls. */
export class PostgresTransactions implements Transactions {
  readonly #deps: TransactionsDeps;
  readonly #call: CallScope | undefined;

  constructor(deps: TransactionsDeps, call: CallScope | undefined) {
    this.#deps = deps;
    this.#call = call;
  }

  run<T>(work: (tx: Tx, afterCommit: AfterCommit) => Promise<T | Later<T>>, options: WriteOptions = {}): Promise<T> {
    return retrying(this.#deps.pool, () => this.#runOnce(work, options));
  }

  async #runOnce<T>(
    work: (tx: Tx, afterCommit: AfterCommit) => Promise<T | Later<T>>,
    options: WriteOptions,
  ): Promise<T> {
    const { pool, open, slots } = this.#deps;
    slots.wrote(this);
    const lease = await pool.lease(this.#call);
    try {
      const transaction = open.begin(lease);
      if (options.unbounded === true) transaction.unbound();
      if (options.lasting === false) transaction.send('set local synchronous_commit = off');
      try {
        const steps: (() => void)[] = [];
        const result = await work(transaction.db, (step) => steps.push(step));
        await transaction.commit();
        for (const step of steps) step();
        return result instanceof Later ? await result.value : result;
      } catch (error) {
        // The first failure is the cause. A connection that cannot roll back is discarded.
        const cause = transaction.causeOf(error);
        await transaction.rollback().catch(() => {});
        throw cause;
      }
    } finally {
      lease.release();
    }
  }

  async ask<Row>(tx: Tx, { sql: text, parameters }: CompiledQuery<Row>): Promise<Row[]> {
    return (await this.#deps.open.of(tx).ask(text, [...parameters])).rows as Row[];
  }

  async giveWayAfter<T>(transaction: () => Promise<T>): Promise<T> {
    const result = await transaction();
    await nextIteration();
    return result;
  }
}

const MAX_TRIES = 5;

/** Repeats work that failed for a reason that another attempt may not meet. */
export async function retrying<T>(pool: Pool, work: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await work();
    } catch (error) {
      if (attempt >= MAX_TRIES || !isWorthRetrying(pool, error)) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 2 ** attempt * 5 * (0.5 + Math.random())));
  }
}

/** Returns whether failed work may succeed on another attempt. */
export function isWorthRetrying(pool: Pool, error: unknown): boolean {
  const cause = (error as Error).cause ?? error;
  return isRetryable(cause) || pool.forget(cause);
}

/** The transactions that are not ended, by the object that runs their statements. */
export class OpenTransactions {
  readonly #open = new WeakMap<Tx, PipelinedTransaction>();

  begin(lease: Lease): PipelinedTransaction {
    const transaction = new PipelinedTransaction(lease, kyselyOver(lease));
    this.#open.set(transaction.db, transaction);
    return transaction;
  }

  of(tx: Tx): PipelinedTransaction {
    const transaction = this.#open.get(tx);
    if (transaction === undefined) throw new Error('a write outside a transaction of this engine');
    return transaction;
  }
}

/**
 * A transaction that saves round trips. Statements whose rows are not needed are pipelined, including `begin` and
 * `commit`. The first error of any of them fails the transaction, and nothing is stored.
 */
export class PipelinedTransaction {
  /** For statements whose rows are needed. They run after all statements that were sent before. */
  readonly db: Kysely<Tables>;
  readonly #lease: Lease;
  readonly #sent: Promise<QueryResult>[] = [];

  constructor(lease: Lease, db: Kysely<Tables>) {
    this.#lease = lease;
    this.db = db;
    this.send('begin');
  }

  /** Sends a statement without waiting. `commit` reports its failure. */
  send(text: string, values?: unknown[]): void {
    this.#expect(this.#lease.query(text, values));
  }

  /** Sends rows in bulk without waiting. `commit` reports a failure. */
  copy(text: string, rows: Buffer): void {
    this.#expect(this.#lease.copy(text, rows));
  }

  /** Sends a statement after all that were sent before, and returns its rows. */
  ask(text: string, values: unknown[]): Promise<QueryResult> {
    const result = this.#lease.query(text, values);
    this.#expect(result);
    return result;
  }

  /** Removes the time limit of the statements that follow. */
  unbound(): void {
    this.#expect(this.#lease.unbound());
  }

  #expect(result: Promise<QueryResult>): void {
    // `commit` awaits the result. Until then a failure must not count as unhandled.
    result.catch(() => {});
    this.#sent.push(result);
  }

  async commit(): Promise<void> {
    this.send('commit');
    const results = await Promise.all(this.#sent);
    // A failed transaction answers COMMIT with ROLLBACK, without an error.
    if (results.at(-1)?.command !== 'COMMIT') throw new Error('the transaction was rolled back');
  }

  /** Returns the first error of the transaction. Later statements only report that the transaction has failed. */
  causeOf(error: unknown): unknown {
    return (error as { code?: unknown } | null)?.code === IN_FAILED_TRANSACTION ? this.#lease.firstFailure : error;
  }

  async rollback(): Promise<void> {
    await Promise.allSettled(this.#sent);
    await this.#lease.rollback();
  }
}

const IN_FAILED_TRANSACTION = '25P02';

/** Kysely over one connection that the caller leases and releases. */
function kyselyOver(lease: Lease): Kysely<Tables> {
  const client = { query: (text: string, values?: unknown[]) => lease.query(text, values), release() {} };
  const pool = { options: {}, connect: async () => client, end: async () => {} } as unknown as PostgresPool;
  return new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) }).withSchema(SCHEMA);
}
