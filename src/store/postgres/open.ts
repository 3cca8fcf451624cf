import { Kysely, PostgresDialect, sql } from 'kysely';
import { AnabranchError, isReadOnly } from '../../domain/errors.ts';
import { StoreOpenError } from '../contract/store.ts';
import { canServe, type MigrateOptions, migrate } from '../migrations/migrate.ts';
import { explainConnecting, lineOf } from '../postgres_access/connecting.ts';
import { Hosts } from '../postgres_access/hosts.ts';
import { ReadOnlyWatch } from '../postgres_access/read_only_watch.ts';
import type { StoreEngine } from '../sql/engine.ts';
import { ChangeListeners } from '../sql/kit/changes.ts';
import { SegmentCompressor } from '../sql/kit/compression.ts';
import { KeptQueries } from '../sql/kit/kept_queries.ts';
import { ReadingDbs } from '../sql/kit/reading/dbs.ts';
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
import { type HistoryListeners, Pool } from './pool.ts';
import { SCHEMA } from './schema.ts';
import { PostgresStateRows } from './state_rows.ts';
import { OpenTransactions } from './transactions.ts';

export interface PostgresOptions {
  readonly url: string;
  /** The same database without a pooler, for LISTEN and migrations. */
  readonly directUrl?: string;
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
  const { url, directUrl, poolSize = 10, namedStatements = true } = options;
  const warnOfLost = (error: Error) => logger.warn({ err: error }, 'a connection to Postgres was lost');
  const preparing = { poolSize: 2, namedStatements: false, bounded: false, onLost: warnOfLost };
  const hosts = new Hosts(url);
  const direct = directUrl === undefined ? hosts : new Hosts(directUrl);
  const found = direct === hosts ? undefined : await inspect(new Pool({ hosts, ...preparing }));
  const first = new Pool({ hosts: direct, ...preparing });
  const { beginsReadOnly, isPooled } = await prepareDatabase(first, migrating, found);
  if (isPooled)
    logger.warn(
      {},
      'a pooler is between this server and Postgres, so this server finds writes of other instances by polling: set ANABRANCH_DIRECT_DATABASE to the URL of Postgres itself',
    );
  const readOnly = new ReadOnlyWatch({ hosts, logger, onChange: () => pool.renew() });
  const onReadOnly = () => {
    hosts.doubt();
    readOnly.begin();
  };
  // A standby rejects LISTEN.
  const onLost = (error: Error) => (isReadOnlyTransaction(error) ? onReadOnly() : warnOfLost(error));
  const onForgotten = (error: unknown) =>
    logger.warn(
      { err: error },
      'the pooler between this server and Postgres does not support named prepared statements: the server uses unnamed statements from now on. Set ANABRANCH_NAMED_STATEMENTS=false, or enable them in the pooler (pgbouncer 1.21 or later: max_prepared_statements)',
    );
  const onFewer = (connections: number) =>
    logger.warn(
      { connections, wanted: poolSize },
      'Postgres accepts no more connections, so the server uses fewer: raise max_connections or the connection limit of the role or the database, or lower --pool-size',
    );
  const known = new KnownHeads();
  const listeners = new ChangeListeners(onFault);
  const replaced = new ChangeListeners<void>(onFault);
  const history = historyListeners(hosts, logger, () => {
    known.removeAll();
    known.recent.forgetAll();
    notifier.renew();
    replaced.tell();
  });
  const watching = { onLost, onForgotten, onFewer, onReadOnly, history };
  const pool = new Pool({ hosts, poolSize, namedStatements, bounded: true, ...watching });
  const send = async (text: string, values: unknown[]) => {
    const lease = await pool.lease();
    await lease.query(text, values).finally(() => lease.release());
  };
  const notifier = new Notifier({ hosts: direct, send, onHint: (hint) => listeners.tell(hint), onLost });
  if (beginsReadOnly) readOnly.begin();
  // A pooler does not forward what Postgres sends by itself.
  if (!isPooled) await notifier.connect();
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
    description: `postgres ${hosts.description}`,
    lost: undefined,
    sql: postgresExpressions,
    aggregates: postgresAggregates,
    locks: new PostgresLocks(open),
    keys: new PostgresKeys(),
    bulk: new PostgresBulkRows(open),
    changes: new PostgresChanges(listeners, replaced, notifier),
    stateRows: new PostgresStateRows(open),
    claims: new PostgresClaims(open, kept),
    kept,
    known,
    compressor: new SegmentCompressor(),
    slots,
    canServe,
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
  return new PostgresEngine({
    shared,
    pool,
    dbs: new ReadingDbs(new PostgresDialect({ pool }), SCHEMA),
    lanes,
    slots,
    open,
  });
}

/** Logs failovers. `forget` drops what the process keeps of the database. */
function historyListeners(hosts: Hosts, logger: Log, forget: () => void): HistoryListeners {
  return {
    onReplaced: (before, now) => {
      forget();
      logger.warn(
        { before, now, host: hosts.chosen.address },
        before.cluster === now.cluster
          ? 'the database has another timeline, as after a failover: all connections are closed, and nothing of before is kept in memory'
          : 'the URL of the database leads to another cluster: all connections are closed, and nothing of before is kept in memory',
      );
    },
    onRefused: (error) =>
      logger.warn(
        { err: error },
        'the role may not see the timeline of Postgres, so the server notices a failover only if another host of the URL is used: let a superuser grant execute on the functions pg_control_system, pg_current_wal_lsn and pg_walfile_name to the role',
      ),
  };
}

/** A fifth of the connections for reads of any length, half of them for quick reads. The rest is left for writes. */
function lanesOf(poolSize: number): { long: number; quick: number } {
  return { long: Math.max(1, Math.floor(poolSize / 5)), quick: Math.max(1, Math.floor(poolSize / 2)) };
}

/** What a database and the way to it are like. */
interface Inspected {
  /** Whether the database is read-only. */
  readonly beginsReadOnly: boolean;
  /** Whether a pooler is in between. */
  readonly isPooled: boolean;
  /** A text that only this database of this running server has. */
  readonly identity: string;
}

/**
 * Checks that the database is usable and migrates its schema, on separate connections. `pooled` is what was found
 * behind the pooler that this way must avoid.
 */
async function prepareDatabase(pool: Pool, migrating: MigrateOptions, pooled?: Inspected): Promise<Inspected> {
  return using(pool, async (db) => {
    const found = await checkServer(db, pool);
    if (pooled !== undefined) requireDirect(found, pooled);
    await migrate(db, 'postgres', { ...migrating, schema: SCHEMA });
    return found;
  });
}

function inspect(pool: Pool): Promise<Inspected> {
  return using(pool, (db) => checkServer(db, pool));
}

/** Errors: StoreOpenError. */
function requireDirect(direct: Inspected, pooled: Inspected): void {
  if (direct.isPooled)
    throw new StoreOpenError(
      'The direct database is behind a pooler too: name the host and port of Postgres itself, or leave ANABRANCH_DIRECT_DATABASE unset.',
    );
  if (direct.identity !== pooled.identity)
    throw new StoreOpenError(
      'The direct database is another database than the one behind the pooler: ANABRANCH_DIRECT_DATABASE must name the same one.',
    );
}

/** Uses a pool once. */
async function using<T>(pool: Pool, work: (db: Kysely<Tables>) => Promise<T>): Promise<T> {
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) });
  try {
    return await work(db);
  } catch (error) {
    throw asOpenError(error);
  } finally {
    await db.destroy();
  }
}

async function checkServer(db: Kysely<Tables>, pool: Pool): Promise<Inspected> {
  const question = sql<{ version: number; encoding: string; access: string; identity: string }>`select
    current_setting('server_version_num')::int as version, current_setting('server_encoding') as encoding,
    current_setting('transaction_read_only') as access,
    (select oid::text from pg_database where datname = current_database()) || ' ' || pg_postmaster_start_time()::text
      as identity`;
  // In a transaction: a pooler in statement mode refuses `begin`, and says why if no statement follows at once.
  const { rows } = await db.transaction().execute((transaction) => question.execute(transaction));
  const { version = 0, encoding = '', access = '', identity = '' } = rows[0] ?? {};
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
  return { beginsReadOnly: access === 'on', isPooled: pool.isPooled, identity };
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
