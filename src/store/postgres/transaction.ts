import { Kysely, PostgresDialect, type PostgresPool } from 'kysely';
import type { QueryResult } from 'pg';
import type { Tables } from '../sql/tables.ts';
import type { Lease } from './pool.ts';

/**
 * A transaction that spares round trips: statements whose rows nobody waits for are sent at once, one behind the other, `begin` and `commit` among
 * them. The first error of any of them is the transaction's error, and nothing of it is stored then.
 */
export class PipelinedTransaction {
  /** For statements whose rows are wanted; they run after all that were sent before. */
  readonly db: Kysely<Tables>;
  private readonly lease: Lease;
  private readonly sent: Promise<QueryResult>[] = [];

  constructor(lease: Lease, db: Kysely<Tables>) {
    this.lease = lease;
    this.db = db;
    this.send('begin');
  }

  /** Sends a statement whose result is only whether it succeeds; `commit` tells. */
  send(text: string, values?: unknown[]): void {
    this.expect(this.lease.query(text, values));
  }

  /** Sends rows in bulk, likewise. */
  copy(text: string, rows: Buffer): void {
    this.expect(this.lease.copy(text, rows));
  }

  /** Sends a statement whose rows are wanted, likewise: behind all that were sent before, also by `send`. */
  ask(text: string, values: unknown[]): Promise<QueryResult> {
    const result = this.lease.query(text, values);
    this.expect(result);
    return result;
  }

  /** The statements from here on may take as long as they have to. */
  unbound(): void {
    this.expect(this.lease.unbound());
  }

  private expect(result: Promise<QueryResult>): void {
    // Heard in `commit`; until then a failure must not count as unhandled.
    result.catch(() => {});
    this.sent.push(result);
  }

  async commit(): Promise<void> {
    this.send('commit');
    const results = await Promise.all(this.sent);
    // A transaction that failed answers COMMIT with ROLLBACK, without an error.
    if (results.at(-1)?.command !== 'COMMIT') throw new Error('the transaction was rolled back');
  }

  /**
   * What the transaction failed of: of a statement that was sent before and failed, one whose rows are wanted hears only that the transaction has
   * failed already.
   */
  async causeOf(error: unknown): Promise<unknown> {
    if ((error as { code?: unknown } | null)?.code !== IN_FAILED_TRANSACTION) return error;
    const ends = await Promise.allSettled(this.sent);
    return ends.find((end) => end.status === 'rejected')?.reason ?? error;
  }

  async rollback(): Promise<void> {
    await Promise.allSettled(this.sent);
    await this.lease.rollback();
  }
}

const IN_FAILED_TRANSACTION = '25P02';

/** Kysely over one connection that somebody else leases and releases. */
export function kyselyOver(lease: Lease, schema: string): Kysely<Tables> {
  const client = { query: (text: string, values?: unknown[]) => lease.query(text, values), release() {} };
  const pool = { options: {}, connect: async () => client, end: async () => {} } as unknown as PostgresPool;
  return new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) }).withSchema(schema);
}
