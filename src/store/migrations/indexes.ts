import { type Kysely, sql } from 'kysely';
import { StoreOpenError } from '../contract/store.ts';
import type { AddedIndex } from './migration.ts';

export type EngineName = 'postgres' | 'sqlite';

/** Returns the names of the indexes that can be used. One whose creation was interrupted on Postgres cannot. */
export async function validIndexes<T>(
  db: Kysely<T>,
  engine: EngineName,
  schema: string | undefined,
): Promise<string[]> {
  const found =
    engine === 'sqlite'
      ? sql<{ name: string }>`select name from sqlite_master where type = 'index'`
      : sql<{ name: string }>`select c.relname as name from pg_index i join pg_class c on c.oid = i.indexrelid
          join pg_namespace n on n.oid = c.relnamespace
          where i.indisvalid and n.nspname = ${schema === undefined ? sql`current_schema()` : schema}`;
  return (await found.execute(db)).rows.map(({ name }) => name);
}

/** Builds indexes. On Postgres, rows are written meanwhile, and what an interrupted creation left is replaced. */
export async function buildIndexes<T>(
  db: Kysely<T>,
  engine: EngineName,
  schema: string | undefined,
  indexes: readonly AddedIndex[],
): Promise<void> {
  const inSchema = (name: string) => sql.table(schema === undefined ? name : `${schema}.${name}`);
  for (const { name, table, keys } of indexes) {
    const on = sql`${inSchema(table)} ${sql.raw(keys)}`;
    if (engine === 'sqlite') await sql`create index ${sql.id(name)} on ${on}`.execute(db);
    else {
      await sql`drop index concurrently if exists ${inSchema(name)}`.execute(db).catch(explain);
      await sql`create index concurrently ${sql.id(name)} on ${on}`.execute(db);
    }
  }
}

/** Behind a pooler, each statement has a transaction for its settings, and these have none (25001). */
function explain(error: unknown): never {
  if ((error as { code?: unknown }).code !== '25001') throw error;
  throw new StoreOpenError(
    'The migration builds indexes beside writers, which no pooler allows: set ANABRANCH_DIRECT_DATABASE to the URL of Postgres itself, and start again.',
    { cause: error },
  );
}
