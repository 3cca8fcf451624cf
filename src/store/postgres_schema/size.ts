import pg from 'pg';
import { SCHEMA } from '../postgres/schema.ts';

/** Bytes that a database takes on disk, and those of them that are free for new rows. */
export interface DatabaseSize {
  readonly bytes: bigint;
  readonly freeBytes: bigint | undefined;
}

/** Postgres does not tell how many bytes are free. */
export async function sizeOfSchema(url: string): Promise<DatabaseSize> {
  const client = new pg.Client({ connectionString: url, application_name: 'anabranch', connectionTimeoutMillis: 5000 });
  client.on('error', () => undefined); // a query on a lost connection fails by itself
  try {
    await client.connect();
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
