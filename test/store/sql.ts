import { DatabaseSync } from 'node:sqlite';
import pg from 'pg';
import { expect } from 'vitest';
import type { Engine, TestDatabase } from '../support/database.ts';

/** Direct access to the database in plain SQL: to inspect what the store wrote, to damage it, and to block it. */
export interface OutsideSql {
  readonly engine: Engine;
  rows(text: string): Promise<Record<string, unknown>[]>;
  /** The SQL expression of a time this many seconds before that of a column, to the microsecond. */
  earlier(column: string, seconds: number): string;
  /** The tables of the store, without those of the migrator. */
  tables(): Promise<string[]>;
  close(): Promise<void>;
}

type Outside = Pick<TestDatabase, 'engine' | 'url' | 'directUrl'>;

export async function outsideSql(database: Outside, schema = 'anabranch'): Promise<OutsideSql> {
  return database.engine === 'sqlite' ? outsideSqlite(database) : outsidePostgres(database, schema);
}

function outsideSqlite(database: Pick<TestDatabase, 'url'>): OutsideSql {
  const file = sqlitePath(database);
  const db = new DatabaseSync(file, { timeout: 5000, readBigInts: true });
  const rows = async (text: string) => db.prepare(text).all() as Record<string, unknown>[];
  return {
    engine: 'sqlite',
    rows,
    // SQLite computes in milliseconds: the fraction of the second is kept as it is.
    earlier: (column, seconds) =>
      `strftime('%Y-%m-%dT%H:%M:%S', ${column}, '-${seconds} seconds') || substr(${column}, ${'YYYY-MM-DDTHH:MM:SS'.length + 1})`,
    async tables() {
      const found = await rows(`select name from sqlite_master where type = 'table' order by name`);
      return ours(found.map(({ name }) => String(name)));
    },
    async close() {
      db.close();
    },
  };
}

async function outsidePostgres({ url, directUrl = url }: Outside, schema: string): Promise<OutsideSql> {
  const client = new pg.Client({ connectionString: directUrl });
  client.on('error', () => undefined); // a query on a cut connection fails by itself
  await client.connect();
  await client.query(`set search_path to ${schema}`);
  const rows = async (text: string) => (await client.query(text)).rows as Record<string, unknown>[];
  return {
    engine: 'postgres',
    rows,
    earlier: (column, seconds) => `${column} - interval '${seconds} seconds'`,
    async tables() {
      const found = await rows(`select tablename from pg_tables where schemaname = '${schema}' order by tablename`);
      return ours(found.map(({ tablename }) => String(tablename)));
    },
    close: () => client.end(),
  };
}

/**
 * The counter of changes, which is always one row, keys, and leases of background jobs belong to no namespace. An index
 * is no data: it follows from the rows.
 */
function ours(tables: readonly string[]): string[] {
  return tables.filter(
    (name) => !/^(?:kysely_|sqlite_|change_marks$|job_leases$|(?:api|token)_keys$|segment_names$)/.test(name),
  );
}

export function sqlitePath(database: Pick<TestDatabase, 'url'>): string {
  return database.url.replace(/^sqlite:/, '');
}

/** Rows of every table and of the view of steps: all of them, or those of one namespace. */
export async function countRows(sql: OutsideSql, namespace?: string): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  const where = namespace === undefined ? '' : `where namespace = '${namespace}'`;
  for (const table of [...(await sql.tables()), 'steps']) {
    const [row] = await sql.rows(`select count(*) as n from ${table} ${where}`);
    counts[table] = Number(row?.n);
  }
  return counts;
}

/** All rows of a namespace as text, to check that none has changed. */
export async function dumpNamespace(sql: OutsideSql, namespace: string): Promise<string> {
  const lines: string[] = [];
  for (const table of await sql.tables()) {
    for (const row of await sql.rows(`select * from ${table} where namespace = '${namespace}'`))
      lines.push(`${table} ${JSON.stringify(row, (_, value) => (typeof value === 'bigint' ? `${value}` : value))}`);
  }
  return lines.sort().join('\n');
}

/**
 * Resolves when this many Postgres backends wait for a lock. Postgres caches its activity statistics for a transaction
 * unless they are cleared.
 */
export async function waitingForLocks(rows: (text: string) => Promise<unknown[]>, count: number): Promise<void> {
  const waiting = async () => {
    await rows('select pg_stat_clear_snapshot()');
    return rows(`select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`);
  };
  await expect.poll(waiting, { timeout: 5_000, interval: 20 }).toHaveLength(count);
}
