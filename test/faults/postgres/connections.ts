import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import type { TestDatabase } from '../../support/database.ts';

/** The database as its owner, for tests that terminate backends and count them. */
export async function asOwner<T>(database: TestDatabase, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: database.adminUrl });
  client.on('error', () => undefined); // also reported by the query that uses it
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

/** The pool's default, the two that append, and the one that listens. */
export const CONNECTIONS = 10 + 2 + 1;

/** Connections of the service to this database. Others that were just closed last a moment longer. */
export async function connectionsLeft(database: TestDatabase): Promise<number> {
  for (const deadline = performance.now() + 5_000; ; await delay(20)) {
    const count = await connectionsOf(database);
    if (count <= CONNECTIONS || performance.now() > deadline) return count;
  }
}

function connectionsOf(database: TestDatabase): Promise<number> {
  return asOwner(database, async (client) => {
    const { rows } = await client.query<{ n: number }>(
      `select count(*)::int as n from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'`,
    );
    return rows[0]!.n;
  });
}
