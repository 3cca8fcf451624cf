import { setTimeout as wait } from 'node:timers/promises';
import type pg from 'pg';
import { StoreOpenError } from '../contract/store.ts';
import { isReadOnlyTransaction } from '../postgres/errors.ts';
import { SCHEMA } from '../postgres/schema.ts';
import { explainConnecting, lineOf } from '../postgres_access/connecting.ts';
import { clientOf, Hosts } from '../postgres_access/hosts.ts';

/** How long `dropSchema` waits for connections to end. Postgres still lists those of a server that has just stopped. */
const PATIENCE_MS = 5_000;
const PAUSE_MS = 50;

/** Drops the schema with all data, unless a server is connected. Errors: StoreOpenError. */
export async function dropSchema(url: string): Promise<void> {
  let client: pg.Client | undefined;
  try {
    client = await connectedTo(url, { application_name: 'anabranch reset' });
    const connections = await connectionsAfterWaiting(client);
    if (connections > 0) {
      throw new StoreOpenError(
        `The database is being served: connections of servers: ${connections}. Stop them first, and let a pooler close its idle ones (pgbouncer: RECONNECT). Nothing was deleted.`,
      );
    }
    await client.query(`drop schema if exists ${SCHEMA} cascade`);
  } catch (error) {
    if (error instanceof StoreOpenError) throw error;
    const why = isReadOnlyTransaction(error)
      ? 'The database is read-only: make it writable, or name the primary.'
      : (explainConnecting(error) ?? `${lineOf(error)}.`);
    throw new StoreOpenError(`The schema ${SCHEMA} was not deleted. ${why}`, { cause: error });
  } finally {
    await client?.end().catch(() => undefined);
  }
}

/** Connects to the writable host of a URL. */
async function connectedTo(url: string, config: pg.ClientConfig): Promise<pg.Client> {
  const hosts = new Hosts(url);
  await hosts.choose();
  const client = new (clientOf(hosts))(config);
  client.on('error', () => undefined); // a query on a lost connection fails by itself
  await client.connect();
  return client;
}

/**
 * Returns the number of connections of servers: 0 as soon as there are none, otherwise the number after PATIENCE_MS.
 */
async function connectionsAfterWaiting(client: pg.Client): Promise<number> {
  for (let waited = 0; ; waited += PAUSE_MS) {
    const { rows } = await client.query<{ n: string }>(
      `select count(*) as n from pg_catalog.pg_stat_activity
        where datname = current_database() and application_name in ('anabranch', 'anabranch listener')`,
    );
    const connections = Number(rows[0]?.n);
    if (connections === 0 || waited >= PATIENCE_MS) return connections;
    await wait(PAUSE_MS);
  }
}

/** Bytes that a database takes on disk, and those of them that are free for new rows. */
export interface DatabaseSize {
  readonly bytes: bigint;
  readonly freeBytes: bigint | undefined;
}

/** Postgres does not tell how many bytes are free. */
export async function sizeOfSchema(url: string): Promise<DatabaseSize> {
  const client = await connectedTo(url, { application_name: 'anabranch', connectionTimeoutMillis: 5000 });
  try {
    const { rows } = await client.query<{ bytes: string | null }>(
      `select sum(pg_total_relation_size(c.oid)) as bytes from pg_catalog.pg_class as c
        inner join pg_catalog.pg_namespace as n on n.oid = c.relnamespace where n.nspname = $1 and c.relkind = 'r'`,
      [SCHEMA],
    );
    return { bytes: BigInt(rows[0]?.bytes ?? 0), freeBytes: undefined };
  } finally {
    await client.end().catch(() => undefined);
  }
}
