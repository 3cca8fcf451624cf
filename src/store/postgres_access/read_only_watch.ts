import type pg from 'pg';
import { type Hosts, onceAt } from './hosts.ts';

/**
 * What an earlier user of a pooler's connection left in the session must not hold for the next transaction. What the
 * operator set does. `set local` has no effect on the transaction that it is in, so this takes a transaction.
 */
export const RESET_READ_ONLY = 'begin; reset default_transaction_read_only; commit';

const ASK_MS = 1000;

interface Log {
  info(details: object, message: string): void;
  warn(details: object, message: string): void;
}

export interface ReadOnlyWatchOptions {
  readonly hosts: Hosts;
  readonly logger: Log;
  /** Called when the database becomes read-only, and when it accepts writes again. */
  readonly onChange: () => void;
}

/**
 * A10: follows whether the database is read-only, and logs each change once. The first rejected statement begins the
 * condition. From then on a new session is asked until it may write: what is set for a database or a role holds for new
 * sessions only, and a standby can be promoted.
 */
export class ReadOnlyWatch {
  readonly #options: ReadOnlyWatchOptions;
  #isReadOnly = false;
  #next: NodeJS.Timeout | undefined;
  #asking: Promise<void> | undefined;
  #closed = false;

  constructor(options: ReadOnlyWatchOptions) {
    this.#options = options;
  }

  /** Must be called when a statement was rejected. */
  begin(): void {
    if (this.#isReadOnly || this.#closed) return;
    this.#isReadOnly = true;
    this.#options.logger.warn(
      {},
      'the database is read-only, so writes fail with DATABASE_READ_ONLY and reads continue: default_transaction_read_only is on (of the database, the role or the server), or the server is a standby',
    );
    this.#options.onChange();
    this.#askLater();
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#next);
    await this.#asking;
  }

  #askLater(): void {
    const ask = () => {
      this.#asking = this.#ask();
    };
    if (!this.#closed) this.#next = setTimeout(ask, ASK_MS).unref();
  }

  async #ask(): Promise<void> {
    // Without an answer, nothing has changed.
    const isReadOnly = await isNewSessionReadOnly(this.#options.hosts).catch(() => true);
    if (isReadOnly || this.#closed) return this.#askLater();
    this.#isReadOnly = false;
    this.#options.logger.info({}, 'the database accepts writes again');
    this.#options.onChange();
  }
}

async function isNewSessionReadOnly(hosts: Hosts): Promise<boolean> {
  const ask = `${RESET_READ_ONLY}; show transaction_read_only`;
  const results = await onceAt(await hosts.choose(), (client) => client.query(ask));
  // One result for each statement.
  const { rows } = (results as unknown as pg.QueryResult<{ transaction_read_only: string }>[]).at(-1)!;
  return rows[0]?.transaction_read_only !== 'off';
}
