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

/** Connections of the service to this database. */
export function connectionsOf(database: TestDatabase): Promise<number> {
  return asOwner(database, async (client) => {
    const { rows } = await client.query<{ n: number }>(
      `select count(*)::int as n from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'`,
    );
    return rows[0]!.n;
  });
}
