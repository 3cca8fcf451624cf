import { type Kysely, sql } from 'kysely';
import { DEFAULT_MIGRATION_TABLE, Migrator } from 'kysely/migration';
import { migration0001 } from './0001_trajectories.ts';
import { migration0002 } from './0002_runs.ts';
import { migration0003 } from './0003_rollouts.ts';
import { migration0004 } from './0004_statistics.ts';
import { migration0005 } from './0005_earlier_attempts.ts';
import { migration0006 } from './0006_branch_depth.ts';
import { migration0007 } from './0007_purging.ts';
import { migration0008 } from './0008_watched_changes.ts';
import { migration0009 } from './0009_right_answers.ts';
import { migration0010 } from './0010_trajectories_without_run.ts';
import { migration0011 } from './0011_attempts.ts';
import { migration0012 } from './0012_attempt_timing.ts';
import { migration0013 } from './0013_queue_close_time.ts';
import { migration0014 } from './0014_rollout_lists.ts';
import { migration0015 } from './0015_removed_config_paths.ts';
import { migration0016 } from './0016_branch_reward_sum.ts';
import { migration0017 } from './0017_named_validations.ts';
import { migration0018 } from './0018_segments.ts';
import { migration0019 } from './0019_reward_bounds.ts';
import { migration0020 } from './0020_small_states.ts';
import { migration0021 } from './0021_state_bases.ts';
import { migration0022 } from './0022_merged_segments.ts';
import { migration0023 } from './0023_shared_pieces.ts';
import { migration0024 } from './0024_step_scores.ts';
import { migration0025 } from './0025_created_by_open.ts';
import { migration0027 } from './0027_step_labels.ts';
import { migration0030 } from './0030_state_refs.ts';
import { migration0033 } from './0033_expiring_ids.ts';
import { migration0034 } from './0034_trajectory_imports.ts';
import { migration0035 } from './0035_pruned_states.ts';
import { migration0036 } from './0036_retention_policies.ts';
import { migration0037 } from './0037_attach_time.ts';
import { migration0038 } from './0038_storage_counts.ts';
import { migration0039 } from './0039_labelled_segments.ts';
import { migration0040 } from './0040_state_name_index.ts';
import type { Conversion, ConversionProgress, Migration } from './migration.ts';

const MIGRATIONS: readonly Migration[] = [
  migration0001,
  migration0002,
  migration0003,
  migration0004,
  migration0005,
  migration0006,
  migration0007,
  migration0008,
  migration0009,
  migration0010,
  migration0011,
  migration0012,
  migration0013,
  migration0014,
  migration0015,
  migration0016,
  migration0017,
  migration0018,
  migration0019,
  migration0020,
  migration0021,
  migration0022,
  migration0023,
  migration0024,
  migration0025,
  migration0027,
  migration0030,
  migration0033,
  migration0035,
  migration0034,
  migration0036,
  migration0037,
  migration0038,
  migration0039,
  migration0040,
];

/** A newer version of the program created the database. Nothing was changed. */
export class NewerSchemaError extends Error {
  override readonly name = 'NewerSchemaError';
}

/** What converts rows in transactions of its own. */
const CONVERSIONS = MIGRATIONS.flatMap(({ conversion }) => conversion ?? []);

export interface MigrateOptions {
  /** Of tables on Postgres. */
  readonly schema?: string;
  readonly onProgress?: (progress: ConversionProgress) => void;
}

/**
 * Migrates the schema to this version, and returns the names of the migrations that ran. Safe for concurrent processes:
 * one of them migrates at a time. Rejects a schema with migrations that this version does not know. Postgres needs two
 * connections, of which one holds the lock. The migrator describes all tables several times, so it does not run on a
 * schema that is up to date.
 */
export async function migrate<T>(
  db: Kysely<T>,
  engine: 'postgres' | 'sqlite',
  options: MigrateOptions = {},
): Promise<string[]> {
  const before = await migrationsOf(db, engine, options.schema);
  refuseNewer(before);
  if (await isUpToDate(db, engine, options, before)) return [];
  // Only one process can open an SQLite file.
  if (engine === 'sqlite') return migrateAlone(db, engine, options);
  return db.transaction().execute(async (lock) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(lock);
    await sql`select pg_advisory_xact_lock(${MIGRATION_LOCK})`.execute(lock);
    return migrateAlone(db, engine, options);
  });
}

/** Lock on Postgres: a name, as a number. */
const MIGRATION_LOCK = 0x616e_6162_6d69_67n;

/** The table of a conversion that has not ended. */
const CONVERSION = 'conversion';

async function isUpToDate<T>(
  db: Kysely<T>,
  engine: 'postgres' | 'sqlite',
  { schema }: MigrateOptions,
  before: readonly string[],
): Promise<boolean> {
  return MIGRATIONS.every(({ name }) => before.includes(name)) && !(await hasTable(db, engine, schema, CONVERSION));
}

async function migrateAlone<T>(db: Kysely<T>, engine: 'postgres' | 'sqlite', options: MigrateOptions) {
  const { schema } = options;
  const before = await migrationsOf(db, engine, schema);
  refuseNewer(before);
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
  const ran: string[] = [];
  // Each migration of stored rows has a transaction of its own; those of an empty database are faster together.
  for (let more = true; more; ) {
    const { error, results = [] } = await (before.length === 0 ? migrator.migrateToLatest() : migrator.migrateUp());
    if (error !== undefined) throw error;
    for (const { migrationName } of results) ran.push(migrationName);
    more = before.length > 0 && results.length > 0;
  }
  if (await hasTable(db, engine, schema, CONVERSION)) {
    for (const conversion of CONVERSIONS) while (await runSome(db, engine, conversion, options));
  }
  return ran;
}

/** Runs one transaction. Returns whether more follow. */
function runSome<T>(
  db: Kysely<T>,
  engine: 'postgres' | 'sqlite',
  conversion: Conversion,
  { schema, onProgress }: MigrateOptions,
): Promise<boolean> {
  return db.transaction().execute(async (tx) => {
    await useSchema(tx, schema);
    // Rows are found by keys, in tables that were never analyzed.
    for (const plan of engine === 'postgres' ? ['seqscan', 'hashjoin', 'mergejoin'] : [])
      await sql`set local ${sql.raw(`enable_${plan}`)} = off`.execute(tx);
    const progress = await conversion.convertSome(tx, engine);
    if (progress === undefined) {
      for (const statement of conversion.end.split(';')) await sql.raw(statement).execute(tx);
      return false;
    }
    onProgress?.(progress);
    return true;
  });
}

async function useSchema<T>(db: Kysely<T>, schema: string | undefined): Promise<void> {
  if (schema !== undefined) await sql`set local search_path to ${sql.id(schema)}`.execute(db);
}

function runner(
  migration: Migration,
  engine: 'postgres' | 'sqlite',
  schema: string | undefined,
): (db: Kysely<unknown>) => Promise<void> {
  return async (db) => {
    await useSchema(db, schema);
    for (const statement of migration[engine].split(/;\s*$/m)) {
      if (statement.trim() !== '') await sql.raw(statement).execute(db);
    }
    await migration.convert?.(db);
  };
}

/** The names of the migrations that ran. */
async function migrationsOf<T>(
  db: Kysely<T>,
  engine: 'postgres' | 'sqlite',
  schema: string | undefined,
): Promise<string[]> {
  if (!(await hasTable(db, engine, schema, DEFAULT_MIGRATION_TABLE))) return [];
  const table = schema === undefined ? DEFAULT_MIGRATION_TABLE : `${schema}.${DEFAULT_MIGRATION_TABLE}`;
  const { rows } = await sql<{ name: string }>`select name from ${sql.table(table)}`.execute(db);
  return rows.map(({ name }) => name);
}

async function hasTable<T>(
  db: Kysely<T>,
  engine: 'postgres' | 'sqlite',
  schema: string | undefined,
  name: string,
): Promise<boolean> {
  const found =
    engine === 'postgres'
      ? sql`select 1 from pg_tables where tablename = ${name} and schemaname = ${schema === undefined ? sql`current_schema()` : schema}`
      : sql`select 1 from sqlite_master where type = 'table' and name = ${name}`;
  return (await found.execute(db)).rows.length > 0;
}

function refuseNewer(names: readonly string[]): void {
  const known = new Set(MIGRATIONS.map(({ name }) => name));
  const unknown = names.filter((name) => !known.has(name));
  if (unknown.length === 0) return;
  throw new NewerSchemaError(
    `The database was made by a newer version of Anabranch (it has ${unknown.join(', ')}): run that version, or use another database.`,
  );
}
