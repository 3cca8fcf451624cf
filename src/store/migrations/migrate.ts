import { setTimeout as wait } from 'node:timers/promises';
import { type Kysely, sql } from 'kysely';
import { DEFAULT_MIGRATION_LOCK_TABLE, DEFAULT_MIGRATION_TABLE, Migrator } from 'kysely/migration';
import { AnabranchError } from '../../domain/errors.ts';
import { StoreOpenError } from '../contract/store.ts';
import { TABLES } from '../sql/kit/tables.ts';
import { buildIndexes, type EngineName, validIndexes } from './indexes.ts';
import { inTurn, LOCK_TIMEOUT_MS, withLockTimeout } from './locks.ts';
import type { AddedIndex, Conversion, ConversionProgress, Migration } from './migration.ts';
import { MIGRATIONS } from './migrations.ts';

export interface MigrateOptions {
  /** Of tables on Postgres. */
  readonly schema?: string;
  readonly onProgress?: (progress: ConversionProgress) => void;
  readonly log?: (details: object, message: string) => void;
  /** Waits until another process has migrated the schema. Default: migrates it. */
  readonly waiting?: WaitOptions | undefined;
}

export interface WaitOptions {
  /** Called once, if the schema is not of this version. */
  readonly onWait: () => Promise<void>;
  /** Ends the wait. It then rejects with an AbortError. */
  readonly signal: AbortSignal;
}

/** Milliseconds between two looks at the schema that another process migrates. */
const LOOK_MS = 500;

/**
 * Migrates the schema to this version. Safe for concurrent processes: one of them migrates at a time. Rejects a schema
 * of another program, of a newer version that this one cannot serve or of an unreleased one, and does not change it.
 * Postgres needs two connections, of which one holds the lock. The migrator describes all tables several times, so it
 * does not run on a schema that is up to date. Errors: StoreOpenError.
 */
export async function migrate<T>(db: Kysely<T>, engine: EngineName, options: MigrateOptions = {}): Promise<void> {
  const before = await inspect(db, engine, options);
  refuse(before);
  const newer = before.migrations.filter((name) => !isKnown(name));
  if (newer.length > 0)
    options.log?.({ migrations: newer }, 'the schema is of a newer version, which this version can serve');
  if (isUpToDate(before)) return requireTables(before, () => inspect(db, engine, options));
  if (options.waiting !== undefined) return awaitMigration(db, engine, options, options.waiting);
  try {
    // Only one process can open an SQLite file.
    if (engine === 'sqlite') await migrateAlone(db, engine, options);
    else await inTurn(db, () => migrateAlone(db, engine, options), options.log);
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'STORAGE_FULL') throw storageFull(error);
    throw error;
  }
}

function storageFull(cause: AnabranchError): StoreOpenError {
  const reason = cause.cause instanceof Error ? cause.cause.message : cause.message;
  return new StoreOpenError(
    `The schema is migrated, and the disk of the database became full (${reason}). What was converted is kept: make room, and start again.`,
    { cause },
  );
}

async function awaitMigration<T>(
  db: Kysely<T>,
  engine: EngineName,
  options: MigrateOptions,
  { onWait, signal }: WaitOptions,
): Promise<void> {
  await onWait();
  for (;;) {
    await wait(LOOK_MS, undefined, { signal });
    const found = await inspect(db, engine, options);
    refuse(found);
    if (isUpToDate(found)) return requireTables(found, () => inspect(db, engine, options));
  }
}

/** What a schema has. */
interface Found {
  readonly tables: readonly string[];
  /** Names of the migrations that ran. */
  readonly migrations: readonly string[];
  /** Names of the indexes that are complete. Empty if no migration adds any. */
  readonly indexes: readonly string[];
}

function isUpToDate({ tables, migrations, indexes }: Found): boolean {
  return MIGRATIONS.every(
    ({ name, conversion, indexes: added = [] }) =>
      migrations.includes(name) &&
      (conversion === undefined || !tables.includes(conversion.progressTable)) &&
      added.every((index) => indexes.includes(index.name)),
  );
}

/**
 * A damaged catalogue can lack tables, and calls would fail one by one. Looks again if some are missing: another
 * process may have migrated after the tables were listed, and before the migrations were.
 */
async function requireTables({ tables }: Found, look: () => Promise<Found>): Promise<void> {
  if (missingIn(tables).length === 0) return;
  const missing = missingIn((await look()).tables);
  if (missing.length === 0) return;
  throw new StoreOpenError(`The database is damaged: it has no table ${missing.join(', ')}. Restore a backup.`);
}

function missingIn(tables: readonly string[]): string[] {
  return Object.keys(TABLES).filter((name) => !tables.includes(name));
}

async function migrateAlone<T>(db: Kysely<T>, engine: EngineName, options: MigrateOptions): Promise<void> {
  const { schema } = options;
  const before = await inspect(db, engine, options);
  refuse(before);
  const migrator = new Migrator({
    db,
    provider: {
      getMigrations: async () =>
        Object.fromEntries(MIGRATIONS.map((each) => [each.name, { up: runner(each, engine, schema) }])),
    },
    // A migration with a lower number may be added later: none depends on one with a higher number.
    allowUnorderedMigrations: true,
    ...(schema === undefined ? {} : { migrationTableSchema: schema }),
  });
  await convertAll(db, engine, options);
  // Each migration of stored rows has a transaction of its own; those of an empty database are faster together.
  for (let more = true; more; ) {
    const isEmpty = before.migrations.length === 0;
    const results = await withLockTimeout(async () => {
      const { error, results = [] } = await (isEmpty ? migrator.migrateToLatest() : migrator.migrateUp());
      if (error !== undefined) throw error;
      return results;
    }, options.log);
    await convertAll(db, engine, options);
    more = !isEmpty && results.length > 0;
  }
  const { indexes } = await inspect(db, engine, options);
  await buildIndexes(
    db,
    engine,
    schema,
    addedIndexes().filter(({ name }) => !indexes.includes(name)),
  );
}

function addedIndexes(): AddedIndex[] {
  return MIGRATIONS.flatMap(({ indexes = [] }) => indexes);
}

/** Runs the conversions of the migrations that ran, also those that were interrupted. */
async function convertAll<T>(db: Kysely<T>, engine: EngineName, options: MigrateOptions): Promise<void> {
  const conversions = MIGRATIONS.flatMap(({ conversion }) => conversion ?? []);
  if (conversions.length === 0) return;
  const { tables } = await inspect(db, engine, options);
  for (const conversion of conversions.filter(({ progressTable }) => tables.includes(progressTable))) {
    while (await withLockTimeout(() => convertSome(db, engine, conversion, options), options.log));
  }
}

/** Runs one transaction. Returns whether more follow. */
function convertSome<T>(
  db: Kysely<T>,
  engine: EngineName,
  { progressTable, convertSome }: Conversion,
  { schema, onProgress }: MigrateOptions,
): Promise<boolean> {
  return db.transaction().execute(async (tx) => {
    await useSchema(tx, engine, schema);
    // Rows are found by keys, in tables that were never analyzed.
    for (const plan of engine === 'postgres' ? ['seqscan', 'hashjoin', 'mergejoin'] : [])
      await sql`set local ${sql.raw(`enable_${plan}`)} = off`.execute(tx);
    const progress = await convertSome(tx, engine);
    if (progress === undefined) {
      await sql`drop table ${sql.table(progressTable)}`.execute(tx);
      return false;
    }
    onProgress?.(progress);
    return true;
  });
}

/** For the rest of a transaction of a migration. */
async function useSchema<T>(db: Kysely<T>, engine: EngineName, schema: string | undefined): Promise<void> {
  if (schema !== undefined) await sql`set local search_path to ${sql.id(schema)}`.execute(db);
  if (engine === 'postgres') await sql`set local lock_timeout = ${sql.raw(`${LOCK_TIMEOUT_MS}`)}`.execute(db);
}

function runner(
  migration: Migration,
  engine: EngineName,
  schema: string | undefined,
): (db: Kysely<unknown>) => Promise<void> {
  return async (db) => {
    await useSchema(db, engine, schema);
    for (const statement of migration[engine].split(BETWEEN_STATEMENTS)) await sql.raw(statement).execute(db);
  };
}

/** See `Migration`. */
const BETWEEN_STATEMENTS = /;\n+(?=\S)(?!end\b)/;

async function inspect<T>(db: Kysely<T>, engine: EngineName, { schema }: MigrateOptions): Promise<Found> {
  const tables = (await tablesIn(db, engine, schema)).filter((name) => name !== DEFAULT_MIGRATION_LOCK_TABLE);
  if (!tables.includes(DEFAULT_MIGRATION_TABLE)) return { tables, migrations: [], indexes: [] };
  const table = schema === undefined ? DEFAULT_MIGRATION_TABLE : `${schema}.${DEFAULT_MIGRATION_TABLE}`;
  const { rows } = await sql<{ name: string }>`select name from ${sql.table(table)} order by name`.execute(db);
  return {
    tables: tables.filter((name) => name !== DEFAULT_MIGRATION_TABLE),
    migrations: rows.map(({ name }) => name),
    indexes: addedIndexes().length === 0 ? [] : await validIndexes(db, engine, schema),
  };
}

async function tablesIn<T>(db: Kysely<T>, engine: EngineName, schema: string | undefined): Promise<string[]> {
  const found =
    engine === 'postgres'
      ? sql<{
          name: string;
        }>`select tablename as name from pg_tables where schemaname = ${schema === undefined ? sql`current_schema()` : schema} order by 1`
      : sql<{
          name: string;
        }>`select name from sqlite_master where type = 'table' and name not like 'sqlite\\_%' escape '\\' order by 1`;
  return (await found.execute(db)).rows.map(({ name }) => name);
}

/** First migrations of the commits before the first release. */
const UNRELEASED = /^0001_(?:trajectories$|baseline_)/;

function isKnown(migration: string): boolean {
  return MIGRATIONS.some(({ name }) => name === migration);
}

/** Whether this version can serve the schema after a migration that it does not know (see `Migration.name`). */
function isServable(migration: string): boolean {
  const after = /_after_(\d{4})$/.exec(migration)?.[1];
  const newest = MIGRATIONS.map(({ name }) => name.slice(0, 4))
    .sort()
    .at(-1);
  return after !== undefined && newest !== undefined && after <= newest;
}

/** Whether this version can serve a schema with these migrations: it has all of its own, and may have further ones. */
export function canServe(migrations: readonly string[]): boolean {
  const hasAll = MIGRATIONS.every(({ name }) => migrations.includes(name));
  return hasAll && unknownIn(migrations).length === 0;
}

/** Returns the migrations after which this version cannot serve a schema. */
function unknownIn(migrations: readonly string[]): string[] {
  return migrations.filter((name) => !isKnown(name) && !isServable(name));
}

function refuse({ tables, migrations }: Found): void {
  const unknown = unknownIn(migrations);
  const [table] = tables;
  const isOurs = migrations.some(isKnown);
  if (unknown.some((name) => UNRELEASED.test(name))) {
    throw new StoreOpenError(
      `An unreleased version of Anabranch made the database (${migrations[0]}), and this version cannot read it. Nothing was changed. Use another database, or delete everything in this one with \`anabranch reset --database URL\`.`,
    );
  }
  if (isOurs && unknown.length > 0) {
    throw new StoreOpenError(
      `The database was made by a newer version of Anabranch (it has ${unknown.join(', ')}): run that version, or use another database. Nothing was changed.`,
    );
  }
  if (isOurs || (unknown.length === 0 && table === undefined)) return;
  if (migrations.length === 0 && missingIn(tables).length === 0) {
    throw new StoreOpenError('The database is damaged: the list of its migrations is missing. Restore a backup.');
  }
  const found = unknown.length > 0 ? `the migration "${unknown[0]}"` : `the table "${table}"`;
  throw new StoreOpenError(
    `The database is of another program (it has ${found}): use another database. Nothing was changed.`,
  );
}
