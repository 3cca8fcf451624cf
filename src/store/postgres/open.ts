import { Kysely, PostgresDialect, sql } from 'kysely';
import { AnabranchError, isReadOnly } from '../../domain/errors.ts';
import { StoreOpenError } from '../contract/store.ts';
import { type MigrateOptions, migrate } from '../migrations/migrate.ts';
import { MIGRATIONS } from '../migrations/migrations.ts';
import { explainConnecting, lineOf } from '../postgres_access/connecting.ts';
import { ReadOnlyWatch } from '../postgres_access/read_only_watch.ts';
import type { StoreEngine } from '../sql/engine.ts';
import { ChangeListeners } from '../sql/kit/changes.ts';
import { SegmentCompressor } from '../sql/kit/compression.ts';
import { KeptQueries } from '../sql/kit/kept_queries.ts';
import { ReadLanes } from '../sql/kit/reading/lanes.ts';
import { ReadSlots } from '../sql/kit/reading/slots.ts';
import type { Tables } from '../sql/kit/tables.ts';
import { KnownHeads } from '../sql/log/append/known_heads.ts';
import { PostgresBulkRows } from './bulk_rows.ts';
import { PostgresChanges } from './changes.ts';
import { PostgresClaims } from './claims.ts';
import { PostgresEngine } from './engine.ts';
import { isDamage, isReadOnlyTransaction } from './errors.ts';
import { postgresAggregates, postgresExpressions } from './expressions.ts';
import { PostgresKeys } from './keys.ts';
import { PostgresLocks } from './locks.ts';
import { Notifier } from './notify.ts';
import { Pool } from './pool.ts';
import { SCHEMA } from './schema.ts';
import { PostgresStateRows } from './state_rows.ts';
import { OpenTransactions } from './transactions.ts';

export interface PostgresOptions {
  readonly url: string;
  readonly poolSize?: number;
  readonly namedStatements?: boolean;
}

interface Log {
  info(details: object, message: string): void;
  warn(details: object, message: string): void;
}

/** Opens the engine for many writers and instances. */
export async function openPostgres(
  options: PostgresOptions,
  logger: Log,
  onFault: (error: unknown) => void,
  migrating: MigrateOptions = {},
): Promise<StoreEngine> {
  const { url, poolSize = 10, namedStatements = true } = options;
  const warnOfLost = (error: Error) => logger.warn({ err: error }, 'a connection to Postgres was lost');
  const first = new Pool({ url, poolSize: 2, namedStatements: false, bounded: false, onLost: warnOfLost });
  const beginsReadOnly = await prepareDatabase(first, migrating);
  const readOnly = new ReadOnlyWatch({ url, logger, onChange: () => pool.renew() });
  const onReadOnly = () => readOnly.begin();
  // A standby rejects LISTEN.
  const onLost = (error: Error) => (isReadOnlyTransaction(error) ? onReadOnly() : warnOfLost(error));
  const onForgotten = (error: unknown) =>
    logger.warn(
      { err: error },
      'the pooler between this server and Postgres does not support named prepared statements: the server uses unnamed statements from now on. Set ANABRANCH_NAMED_STATEMENTS=false, or enable them in the pooler (pgbouncer 1.21 or later: max_prepared_statements)',
    );
  const pool = new Pool({ url, poolSize, namedStatements, bounded: true, onLost, onForgotten, onReadOnly });
  const listeners = new ChangeListeners(onFault);
  const send = async (text: string, values: unknown[]) => {
    const lease = await pool.lease();
    await lease.query(text, values).finally(() => lease.release());
  };
  const notifier = new Notifier({ url, send, onHint: (hint) => listeners.tell(hint), onLost });
  if (beginsReadOnly) readOnly.begin();
  await notifier.connect();
  const slots = new ReadSlots();
  const lanes = new ReadLanes({ ...lanesOf(poolSize), restFor: (milliseconds) => slots.restAfter(milliseconds) });
  const open = new OpenTransactions();
  const kept = new KeptQueries();
  let closed: Promise<void> | undefined;
  const close = async () => {
    await readOnly.close();
    await notifier.close();
    lanes.close(new Error('the store is closed'));
    await pool.end();
  };
  const shared = {
    description: `postgres ${addressOf(url)}`,
    lost: undefined,
    sql: postgresExpressions,
    aggregates: postgresAggregates,
    locks: new PostgresLocks(open),
    keys: new PostgresKeys(),
    bulk: new PostgresBulkRows(open),
    changes: new PostgresChanges(listeners, notifier),
    stateRows: new PostgresStateRows(open),
    claims: new PostgresClaims(open, kept),
    kept,
    known: new KnownHeads(),
    compressor: new SegmentCompressor(),
    slots,
    migrations: MIGRATIONS.map(({ name }) => name),
    load: () => ({
      pools: pool.load(lanes.load.waiting),
      listening: notifier.listening,
      walBytes: undefined,
      statements: pool.times.all,
    }),
    emptyWal: undefined,
    cutFreePages: undefined,
    close: () => {
      closed ??= close();
      return closed;
    },
  };
  return new PostgresEngine({ shared, pool, dialect: new PostgresDialect({ pool }), lanes, slots, open });
}

/** A fifth of the connections for reads of any length, half of them for quick reads. The rest is left for writes. */
function lanesOf(poolSize: number): { long: number; quick: number } {
  return { long: Math.max(1, Math.floor(poolSize / 5)), quick: Math.max(1, Math.floor(poolSize / 2)) };
}

/**
 * Checks that the database is usable and migrates its schema, on separate connections. Returns whether the database is
 * read-only.
 */
async function prepareDatabase(pool: Pool, migrating: MigrateOptions): Promise<boolean> {
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) });
  try {
    const beginsReadOnly = await checkServer(db);
    await migrate(db, 'postgres', { ...migrating, schema: SCHEMA });
    return beginsReadOnly;
  } catch (error) {
    throw asOpenError(error);
  } finally {
    await db.destroy();
  }
}

/** Returns whether the database is read-only. */
async function checkServer(db: Kysely<Tables>): Promise<boolean> {
  const { rows } = await sql<{ version: number; encoding: string; access: string }>`select
    current_setting('server_version_num')::int as version, current_setting('server_encoding') as encoding,
    current_setting('transaction_read_only') as access`.execute(db);
  const { version = 0, encoding = '', access = '' } = rows[0] ?? {};
  if (version < 150_000) {
    throw new StoreOpenError(
      `This Postgres is version ${Math.floor(version / 10_000)}: version 15 or later is required.`,
    );
  }
  if (encoding !== 'UTF8') {
    throw new StoreOpenError(
      `This database keeps text as ${encoding}, which cannot hold all of it: make one with encoding UTF8 (create database … encoding 'UTF8' template template0).`,
    );
  }
  return access === 'on';
}

function asOpenError(error: unknown): unknown {
  if (error instanceof StoreOpenError || (error as Error).name === 'AbortError') return error;
  const message = messageOf(error);
  return message === undefined ? error : new StoreOpenError(message, { cause: error });
}

function messageOf(error: unknown): string | undefined {
  if (isReadOnly(error))
    return 'The database is read-only (default_transaction_read_only is on, or the server is a standby), and its schema is missing or of an older version: make the database writable, or name the primary, to migrate the schema.';
  const refused = explainConnecting(error instanceof AnabranchError ? error.cause : error);
  if (refused !== undefined) return refused;
  return isDamage(error)
    ? `The schema "${SCHEMA}" is damaged: ${lineOf(error)}. Restore a backup of the database.`
    : undefined;
}

/** Returns host, port and database of a URL, without the password. */
function addressOf(url: string): string {
  try {
    const { hostname, port, pathname, searchParams } = new URL(url);
    return `${searchParams.get('host') ?? hostname}${port === '' ? '' : `:${port}`}${pathname}`;
  } catch {
    return '';
  }
}
