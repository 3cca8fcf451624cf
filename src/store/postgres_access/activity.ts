import pg from 'pg';

/**
 * Longest time to wait for a connection, and for an answer. Both together are shorter than the silence after which a
 * connection is given up.
 */
const CONNECT_MS = 1000;
const ANSWER_MS = 1000;
/** The connection is closed after this time without a question. */
const IDLE_MS = 60_000;

/**
 * Asks Postgres which of its processes work on a statement, over a connection of its own, so that the question never
 * waits for a free one.
 */
export class Activity {
  readonly #pool: pg.Pool;

  constructor(url: string) {
    this.#pool = new pg.Pool({
      connectionString: url,
      max: 1,
      connectionTimeoutMillis: CONNECT_MS,
      query_timeout: ANSWER_MS,
      idleTimeoutMillis: IDLE_MS,
      allowExitOnIdle: true,
      application_name: 'anabranch',
    });
    // Lost while idle: the next question connects again.
    this.#pool.on('error', () => undefined);
  }

  /** Behind a pooler the process ids are not those of Postgres, and none of them is found. */
  async findWorking(processIds: readonly number[]): Promise<readonly number[]> {
    const { rows } = await this.#pool.query<{ pid: number }>(
      `select pid from pg_catalog.pg_stat_activity where state = 'active' and pid = any($1)`,
      [processIds],
    );
    return rows.map(({ pid }) => pid);
  }

  end(): Promise<void> {
    return this.#pool.end();
  }
}
