import { Kysely, PostgresDialect, type PostgresPool } from 'kysely';
import type { QueryResult } from 'pg';
import type { Tables } from '../sql/kit/tables.ts';
import type { Lease } from './pool.ts';

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
export function kyselyOver(lease: Lease, schema: string): Kysely<Tables> {
  const client = { query: (text: string, values?: unknown[]) => lease.query(text, values), release() {} };
  const pool = { options: {}, connect: async () => client, end: async () => {} } as unknown as PostgresPool;
  return new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) }).withSchema(schema);
}
