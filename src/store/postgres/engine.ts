import { CompiledQuery, Kysely, PostgresDialect, type RawBuilder, type SqlBool, sql } from 'kysely';
import type { Digest } from '../../domain/ids.ts';
import type { Segment } from '../../domain/lineage.ts';
import type { Horizon } from '../contract/run.ts';
import { type CallScope, DatabaseSilent, StoreOpenError } from '../contract/store.ts';
import { migrate } from '../migrations/migrate.ts';
import { ChangeListeners } from '../sql/changes.ts';
import {
  type Engine,
  type FoundState,
  type KeyedTable,
  Later,
  type LockableQuery,
  type LockedHead,
  type QueriesOf,
  type Queue,
  type QueuedRow,
  type RowLock,
  type RowsOf,
  type SeenHead,
  type StageName,
  type StretchExtrema,
  type Tx,
  type Wanted,
  type WriteOptions,
} from '../sql/engine.ts';
import { KeptQueries } from '../sql/kept_queries.ts';
import type { PointBatch } from '../sql/metric/point_batch.ts';
import type { Stretch } from '../sql/metric/stretches.ts';
import { readingDialect } from '../sql/reading/dialect.ts';
import { ReadLanes, type Timed } from '../sql/reading/lanes.ts';
import { nextTurn } from '../sql/reading/next_turn.ts';
import { ReadTurns } from '../sql/reading/turns.ts';
import { padded } from '../sql/statement_shapes.ts';
import type { StepRow } from '../sql/step/row.ts';
import { STEPS } from '../sql/tables/steps.ts';
import { type Row, type RowOf, type RowUpdate, type Table, valuesOf } from '../sql/tables/table.ts';
import type { Tables } from '../sql/tables.ts';
import { type HeadColumns, readHead } from '../sql/trajectory/heads.ts';
import { bindDigest, bindOptionalReal, readDigest } from '../sql/values.ts';
import { postgresAggregates } from './aggregates.ts';
import { isRetryable } from './errors.ts';
import { ExtremaReader, upsertPointsText, upsertPointsValues } from './metric_points.ts';
import { Notifier } from './notify.ts';
import { type Lease, Pool } from './pool.ts';
import { lockQueued, nextOfStage } from './queue.ts';
import { insertRows, namesOf, updateRows } from './rows.ts';
import { SCHEMA, sequenceOf } from './schema.ts';
import { kyselyOver, PipelinedTransaction } from './transaction.ts';

const MAX_TRIES = 5;

export interface PostgresOptions {
  readonly url: string;
  readonly poolSize?: number;
  readonly namedStatements?: boolean;
}

interface Log {
  warn(details: object, message: string): void;
}

/** Opens the engine for many writers and instances. */
export async function openPostgres(
  options: PostgresOptions,
  logger: Log,
  onFault: (error: unknown) => void,
): Promise<Engine> {
  const onLost = (error: Error) => logger.warn({ err: error }, 'a connection to Postgres was lost');
  const { url, poolSize = 10, namedStatements = true } = options;
  await prepareDatabase(new Pool({ url, poolSize: 2, namedStatements: false, bounded: false, onLost }));
  const onForgotten = (error: unknown) =>
    logger.warn(
      { err: error },
      'the pooler between this server and Postgres does not support named prepared statements: the server uses unnamed statements from now on. Set ANABRANCH_NAMED_STATEMENTS=false, or enable them in the pooler (pgbouncer 1.21 or later: max_prepared_statements)',
    );
  const pool = new Pool({ url, poolSize, namedStatements, bounded: true, onLost, onForgotten });
  const listeners = new ChangeListeners(onFault);
  const notifier = new Notifier({ url, onKey: (key) => listeners.tell(key), onLost });
  await notifier.connect();
  const turns = new ReadTurns(PAUSE_PER_WORK);
  return new PostgresEngine({
    description: `postgres ${placeOf(url)}`,
    pool,
    dialect: new PostgresDialect({ pool }),
    lanes: new ReadLanes({ ...lanesOf(poolSize), restFor: (milliseconds) => turns.restAfter(milliseconds) }),
    notifier,
    listeners,
    turns,
    kept: new KeptQueries(),
    closed: undefined,
  });
}

/** Readers pause for longer than they work while somebody writes: what they read costs Postgres processor time, too. */
const PAUSE_PER_WORK = 1.5;

/** What was read, and for how long this thread parsed it. */
interface Parsed<Rows> {
  readonly rows: Rows;
  readonly parseMs: number;
}

/** A fifth of the connections for reads of any length, half of them for quick reads. The rest is left for writes. */
function lanesOf(poolSize: number): { long: number; quick: number } {
  return { long: Math.max(1, Math.floor(poolSize / 5)), quick: Math.max(1, Math.floor(poolSize / 2)) };
}

/** Checks that the database is usable and migrates its schema, on separate connections. */
async function prepareDatabase(pool: Pool): Promise<void> {
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) });
  try {
    await checkServer(db);
    await migrate(db, 'postgres', SCHEMA);
  } catch (error) {
    throw asOpenError(error);
  } finally {
    await db.destroy();
  }
}

async function checkServer(db: Kysely<Tables>): Promise<void> {
  const { rows } = await sql<{ version: number; encoding: string }>`select
    current_setting('server_version_num')::int as version, current_setting('server_encoding') as encoding`.execute(db);
  const { version = 0, encoding = '' } = rows[0] ?? {};
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
}

function asOpenError(error: unknown): unknown {
  const { cause, message } = error as Error;
  const reason = cause instanceof Error ? cause.message : message;
  return (error as Error).name === 'AnabranchError'
    ? new StoreOpenError(
        `The database does not respond (${reason}): check that Postgres is running and that the URL is correct.`,
        {
          cause: error,
        },
      )
    : error;
}

/** State that the engine shares with its scopes. */
interface Parts {
  readonly description: string;
  readonly pool: Pool;
  readonly dialect: PostgresDialect;
  readonly lanes: ReadLanes;
  readonly notifier: Notifier;
  readonly listeners: ChangeListeners;
  readonly turns: ReadTurns;
  readonly kept: KeptQueries;
  closed: Promise<void> | undefined;
}

class PostgresEngine implements Engine {
  readonly description: string;
  readonly kept: KeptQueries;
  readonly turns: ReadTurns;
  readonly now = sql<string>`clock_timestamp()`;
  readonly aggregates = postgresAggregates;
  private readonly parts: Parts;
  private readonly call: CallScope | undefined;
  private readonly transactions = new WeakMap<Tx, PipelinedTransaction>();
  private readonly plansByIndex: boolean;
  private reading: Kysely<Tables> | undefined;

  constructor(parts: Parts, call?: CallScope, plansByIndex = false) {
    this.description = parts.description;
    this.kept = parts.kept;
    this.turns = parts.turns;
    this.parts = parts;
    this.call = call;
    this.plansByIndex = plansByIndex;
  }

  within(call: CallScope | undefined): Engine {
    return new PostgresEngine(this.parts, call);
  }

  byIndex(): Engine {
    return new PostgresEngine(this.parts, this.call, true);
  }

  get db(): Kysely<Tables> {
    this.reading ??= new Kysely<Tables>({
      dialect: readingDialect(this.parts.dialect, ({ sql: text, parameters }) =>
        this.read(text, async (lease) => (await lease.query(text, [...parameters])).rows),
      ),
    }).withSchema(SCHEMA);
    return this.reading;
  }

  private async read<Row>(kind: string, work: (lease: Lease) => Promise<Row[]>): Promise<Row[]> {
    const { rows, parseMs } = await this.readInLane(kind, work);
    return this.parts.turns.handOver(rows, parseMs);
  }

  /** Runs a read that takes about as long as others of its kind. */
  private readInLane<Row>(kind: string, work: (lease: Lease) => Promise<Row[]>): Promise<Parsed<Row[]>> {
    const { lanes } = this.parts;
    return lanes.run(kind, this.call?.signal, async () => {
      try {
        return await this.readOnce(work).catch((error: unknown) => {
          if (this.parts.pool.forget(error)) return this.readOnce(work);
          throw error;
        });
      } catch (error) {
        // A1: waiting reads must not each wait until the database is found silent.
        if (error instanceof DatabaseSilent) lanes.rejectWaiting(error);
        throw error;
      }
    });
  }

  private async readOnce<Row>(work: (lease: Lease) => Promise<Row[]>): Promise<Timed<Parsed<Row[]>>> {
    const lease = await this.lease();
    const begun = performance.now();
    try {
      const rows = await (this.plansByIndex ? inTransaction(lease, BEGIN_BY_INDEX, work) : work(lease));
      return { value: { rows, parseMs: lease.parseMs }, milliseconds: performance.now() - begun };
    } finally {
      lease.release();
    }
  }

  /** Returns whether failed work may succeed on another attempt. */
  private isWorthRetrying(error: unknown): boolean {
    const cause = (error as Error).cause ?? error;
    return isRetryable(cause) || this.parts.pool.forget(cause);
  }

  private lease(): Promise<Lease> {
    return this.parts.pool.lease(this.call?.signal);
  }

  table(name: keyof Tables) {
    return sql.table(`${SCHEMA}.${name}`);
  }

  hex(column: RawBuilder<unknown>) {
    return sql<string>`encode(${column}, 'hex')`;
  }

  async rows<Row extends readonly unknown[]>(query: RawBuilder<unknown> | CompiledQuery<unknown>): Promise<Row[]> {
    const { sql: text, parameters } = 'compile' in query ? query.compile(this.db) : query;
    return (await this.read(text, (lease) => lease.rows(text, [...parameters]))) as unknown[] as Row[];
  }

  async readSnapshot<const Rows extends readonly object[]>(queries: QueriesOf<Rows>): Promise<RowsOf<Rows>> {
    const all: readonly CompiledQuery<object>[] = queries;
    const rowsIn = async (lease: Lease, { sql: text, parameters }: CompiledQuery<object>): Promise<object[]> =>
      (await lease.query(text, [...parameters])).rows;
    const { rows: tables, parseMs } = await this.readInLane(all.map(({ sql: text }) => text).join(';'), (lease) =>
      inTransaction(lease, BEGIN_SNAPSHOT, () => Promise.all(all.map((query) => rowsIn(lease, query)))),
    );
    return (await this.parts.turns.handOverAll(tables, parseMs)) as RowsOf<Rows>;
  }

  async write<T>(work: (tx: Tx) => Promise<T | Later<T>>, options: WriteOptions = {}): Promise<T> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.writeOnce(work, options);
      } catch (error) {
        if (attempt >= MAX_TRIES || !this.isWorthRetrying(error)) throw error;
        await backOff(attempt);
      }
    }
  }

  private async writeOnce<T>(work: (tx: Tx) => Promise<T | Later<T>>, options: WriteOptions): Promise<T> {
    this.parts.turns.wrote();
    const lease = await this.lease();
    try {
      const transaction = new PipelinedTransaction(lease, kyselyOver(lease, SCHEMA));
      this.transactions.set(transaction.db, transaction);
      if (options.unbounded === true) transaction.unbound();
      try {
        const result = await work(transaction.db);
        await transaction.commit();
        return result instanceof Later ? await result.value : result;
      } catch (error) {
        // The first failure is the cause. A connection that cannot roll back is discarded.
        const cause = await transaction.causeOf(error);
        await transaction.rollback().catch(() => {});
        throw cause;
      }
    } finally {
      lease.release();
    }
  }

  async giveWayAfter<T>(transaction: () => Promise<T>): Promise<T> {
    const result = await transaction();
    await nextTurn();
    return result;
  }

  lock<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q {
    if (lock === 'delete') return query.forUpdate();
    return lock === 'write' ? query.forNoKeyUpdate() : query.forKeyShare();
  }

  lockFree<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q {
    return this.lock(query, lock).skipLocked();
  }

  async lockTree(tx: Tx, tree: bigint): Promise<void> {
    // All users of the database share the keys of advisory locks, so the row key alone could collide.
    await sql`select pg_advisory_xact_lock(hashtextextended(${`${SCHEMA}.trees/${tree}`}, 0))`.execute(tx);
  }

  async nextKey(tx: Tx, table: KeyedTable): Promise<bigint> {
    const { rows } = await sql<{ key: bigint }>`select nextval(${sequenceOf(table)}) as key`.execute(tx);
    const row = rows[0];
    if (row === undefined) throw new Error('the sequence returned no key');
    return row.key;
  }

  async nextKeys(tx: Tx, table: KeyedTable, count: number): Promise<bigint[]> {
    const { rows } = await sql<{
      key: bigint;
    }>`select nextval(${sequenceOf(table)}) as key from generate_series(1, ${count})`.execute(tx);
    return rows.map(({ key }) => key);
  }

  async changeMark(tx: Tx): Promise<bigint> {
    return markOf(await sql<Mark>`select pg_current_xact_id()::text::bigint as mark`.execute(tx));
  }

  async readHorizon(): Promise<Horizon> {
    const { rows } = await sql<{ snapshot: string; server: string }>`
      select pg_current_snapshot()::text as snapshot, pg_postmaster_start_time()::text as server`.execute(this.db);
    const { snapshot = '', server = '' } = rows[0] ?? {};
    const [, next, open = ''] = /^\d+:(\d+):([\d,]*)$/.exec(snapshot) ?? [];
    if (next === undefined) throw new Error(`the database returned the snapshot "${snapshot}"`);
    return {
      next: BigInt(next),
      open: open === '' ? [] : open.split(',').map(BigInt),
      era: `${server} ${this.parts.notifier.losses}`,
    };
  }

  /**
   * Excludes marks that this cluster has not reached: they come from a restored dump and are not new. The bound is that
   * of the statement's own snapshot, which sees no newer row.
   */
  changedSince(mark: RawBuilder<unknown>, { next, open }: Horizon) {
    const later = sql<SqlBool>`${mark} >= ${next} and ${mark} < pg_snapshot_xmax(pg_current_snapshot())::text::bigint`;
    // One condition per mark, because Postgres before version 17 cannot read an index in order for a list of values.
    const nobody = -1n;
    const shape = padded(open).map((_, i) => open[i] ?? nobody);
    return [...shape.map((each) => sql<SqlBool>`${mark} = cast(${each} as bigint)`), later];
  }

  async lockHeads(
    tx: Tx,
    refs: readonly { tree: bigint; key: bigint }[],
    wait: 'never' | 'bounded',
  ): Promise<{ heads: LockedHead[]; now: string }> {
    const text = wait === 'never' ? `${LOCK_HEADS} skip locked` : LOCK_HEADS;
    const parameters = [refs.map(({ tree }) => tree), refs.map(({ key }) => key)];
    // Sent at once, so that later lookups of states run after this lock.
    const rows = (await this.pipelineOf(tx).ask(text, parameters)).rows as HeadColumns[];
    return { heads: rows.map(readHead), now: rows[0]?.now ?? '' };
  }

  async findStates(
    tx: Tx,
    namespace: string,
    digests: readonly Digest[],
    purpose: 'refer' | 'lock',
  ): Promise<FoundState[]> {
    const pipeline = this.pipelineOf(tx);
    if (purpose === 'refer') pipeline.send(MARK_REFERRER);
    const text = purpose === 'lock' ? `${FIND_STATES} order by digest for no key update` : FIND_STATES;
    const { rows } = await pipeline.ask(text, [namespace, digests.map(bindDigest)]);
    return (rows as { digest: Uint8Array; size: bigint; referenced: boolean }[]).map(
      ({ digest, size, referenced }) => ({
        digest: readDigest(digest),
        size: Number(size),
        referenced,
      }),
    );
  }

  async referToStates(tx: Tx, namespace: string, digests: readonly Digest[]): Promise<Digest[]> {
    const { rows } = await this.pipelineOf(tx).ask(REFER_TO_STATES, [namespace, digests.map(bindDigest)]);
    return (rows as { digest: Uint8Array }[]).map(({ digest }) => readDigest(digest));
  }

  async waitBriefly(tx: Tx): Promise<void> {
    this.pipelineOf(tx).send(WAIT_BRIEFLY);
  }

  async outwaitReferrers(): Promise<boolean> {
    const until = performance.now() + OUTWAIT_MS;
    let left = await this.referrers();
    while (left.length > 0 && performance.now() < until) {
      await new Promise((resolve) => setTimeout(resolve, OUTWAIT_STEP_MS));
      const now = await this.referrers();
      left = left.filter((transaction) => now.includes(transaction));
    }
    return left.length === 0;
  }

  /** Returns the transactions that `MARK_REFERRER` marks now. */
  private async referrers(): Promise<string[]> {
    const { rows } = await sql<{ virtualtransaction: string }>`
      select virtualtransaction from pg_locks
      where locktype = 'relation' and database = (select oid from pg_database where datname = current_database())
        and relation = ${`${SCHEMA}.states`}::regclass and mode in ('RowShareLock', 'RowExclusiveLock')`.execute(
      this.db,
    );
    return rows.map(({ virtualtransaction }) => virtualtransaction);
  }

  async insertRows<T extends Table>(tx: Tx, table: T, rows: readonly RowOf<T>[], onConflict?: string): Promise<void> {
    insertRows(this.pipelineOf(tx), table, rows, onConflict);
  }

  async updateRows(tx: Tx, update: RowUpdate, rows: readonly Row[]): Promise<void> {
    updateRows(this.pipelineOf(tx), update, rows);
  }

  among(column: RawBuilder<unknown>, keys: readonly bigint[]) {
    return sql<SqlBool>`${column} = any(${keys}::bigint[])`;
  }

  async beginClaim(tx: Tx): Promise<{ now: string; mark: bigint }> {
    const rows = (await this.ask(tx, CompiledQuery.raw(BEGIN_CLAIM))) as (Mark & { now: string })[];
    return { now: rows[0]?.now ?? '', mark: markOf({ rows }) };
  }

  lockQueued(tx: Tx, queues: readonly Queue[], wanted: Wanted, limit: number): Promise<QueuedRow[]> {
    return lockQueued(this, tx, queues, wanted, limit);
  }

  lockNext(tx: Tx, stage: StageName, limit: number): Promise<QueuedRow[]> {
    return this.ask(tx, nextOfStage(this, stage, limit));
  }

  async ask<Row>(tx: Tx, { sql: text, parameters }: CompiledQuery<Row>): Promise<Row[]> {
    return (await this.pipelineOf(tx).ask(text, [...parameters])).rows as Row[];
  }

  async appendOne(seen: SeenHead, { row, sums }: StepRow): Promise<string | undefined> {
    this.parts.turns.wrote();
    const lease = await this.lease();
    try {
      const moved = [row.reward_sum, row.byte_sum, bindOptionalReal(sums.branchRewardSum)];
      const head = [seen.tree, seen.key, seen.nextStepNumber, seen.writerEpoch, ...moved];
      const { rows } = await lease.query(APPEND_ONE, [...head, ...valuesOf(row, OWN_COLUMNS)]);
      return (rows as { update_time: string }[])[0]?.update_time;
    } catch (error) {
      if (this.isWorthRetrying(error)) return undefined;
      throw error;
    } finally {
      lease.release();
    }
  }

  async upsertPoints(batch: PointBatch, tx?: Tx): Promise<boolean> {
    const values = upsertPointsValues(batch);
    const stored =
      tx === undefined ? this.upsertAlone(values) : tx.executeQuery(CompiledQuery.raw(UPSERT_POINTS, values));
    return Number((await stored).numAffectedRows ?? 0) === batch.values.length;
  }

  /** Without `tx`, the statement is a transaction of its own. */
  private async upsertAlone(values: unknown[]): Promise<{ numAffectedRows: number }> {
    this.parts.turns.wrote();
    for (let attempt = 1; ; attempt += 1) {
      const lease = await this.lease();
      try {
        return { numAffectedRows: (await lease.query(UPSERT_POINTS, values)).rowCount ?? 0 };
      } catch (error) {
        if (attempt >= MAX_TRIES || !this.isWorthRetrying(error)) throw error;
      } finally {
        lease.release();
      }
      await backOff(attempt);
    }
  }

  readExtrema(series: bigint, stretches: readonly Stretch[]): Promise<StretchExtrema[]> {
    return this.read('extrema', async (lease) => {
      try {
        const begun = lease.query('begin isolation level repeatable read read only');
        const reader = new ExtremaReader(SCHEMA, (text, values) => lease.rows(text, values));
        const [found] = await Promise.all([reader.read(series, stretches), begun]);
        return found;
      } finally {
        // Runs after a failed statement too. A connection that cannot roll back is discarded.
        await lease.rollback().catch(() => {});
      }
    });
  }

  hasPair(column: Parameters<Engine['hasPair']>[0], key: string, value: string) {
    return sql<boolean>`(${column}::json ->> ${key}) = ${value}`;
  }

  hasItem(column: Parameters<Engine['hasItem']>[0], item: string) {
    return sql<boolean>`exists (select 1 from json_array_elements_text(${column}::json) as item (value) where item.value = ${item})`;
  }

  selectSegments(tree: bigint, segments: readonly Segment[]) {
    const keys = segments.map(({ key }) => key);
    const begins = segments.map(({ from }) => from);
    const ends = segments.map(({ to }) => to);
    return sql`select ${tree}::bigint, l.* from unnest(${keys}::bigint[], ${begins}::bigint[], ${ends}::bigint[]) as l`;
  }

  hoursAgo(hours: number) {
    return sql<string>`(clock_timestamp() - make_interval(secs => ${hours * 3600}))`;
  }

  announce(keys: readonly bigint[]): void {
    for (const key of keys) this.parts.listeners.tell(key);
    this.parts.notifier.announce(keys);
  }

  onChange(listener: (key: bigint | undefined) => void): () => void {
    return this.parts.listeners.add(listener);
  }

  close(): Promise<void> {
    const { parts } = this;
    parts.closed ??= (async () => {
      await parts.notifier.close();
      parts.lanes.close(new Error('the store is closed'));
      await parts.pool.end();
    })();
    return parts.closed;
  }

  private pipelineOf(tx: Tx): PipelinedTransaction {
    const transaction = this.transactions.get(tx);
    if (transaction === undefined) throw new Error('a write outside a transaction of this engine');
    return transaction;
  }
}

/** Conflicts with no writer, and is visible in `pg_locks` until the transaction ends. */
const MARK_REFERRER = `lock table ${SCHEMA}.states in row share mode`;

const FIND_STATES = `select digest, size, referenced from ${SCHEMA}.states where namespace = $1 and digest = any($2::bytea[])`;

const REFER_TO_STATES = `with l as materialized (
    select digest from ${SCHEMA}.states where namespace = $1 and digest = any($2::bytea[]) order by digest for no key update),
  m as (
    update ${SCHEMA}.states as s set referenced = true, version = s.version + 1
    from l where s.namespace = $1 and s.digest = l.digest)
  select digest from l`;

/** Longer than a typical commit, and short enough for other members of the group. */
const WAIT_BRIEFLY = `set local lock_timeout = '100ms'`;

/** Time limit for waiting transactions, and the interval of checks. */
const OUTWAIT_MS = 5000;
const OUTWAIT_STEP_MS = 20;

const UPSERT_POINTS = upsertPointsText(SCHEMA);

/**
 * Settings of a transaction that reads by index. The generic plan is the same for all values, so a connection plans
 * each statement once.
 */
const BEGIN_BY_INDEX = `begin read only; ${['seqscan', 'bitmapscan', 'sort', 'hashjoin', 'mergejoin']
  .map((kind) => `set local enable_${kind} = off`)
  .join('; ')}; set local plan_cache_mode = force_generic_plan`;

/** All statements of the transaction see what was committed before its first query. */
const BEGIN_SNAPSHOT = 'begin isolation level repeatable read read only';

/** Runs the statements of a read in one transaction, sent in one go: that takes no more round trips than one statement alone. */
async function inTransaction<Row>(lease: Lease, begin: string, work: (lease: Lease) => Promise<Row[]>): Promise<Row[]> {
  const sent = [lease.query(begin), work(lease), lease.query('commit')] as const;
  try {
    const [, rows] = await Promise.all(sent);
    return rows;
  } catch (error) {
    await Promise.allSettled(sent);
    // A connection that cannot roll back is discarded.
    await lease.rollback().catch(() => {});
    throw error;
  }
}

/** Settings that last until the transaction ends. */
const BEGIN_CLAIM = `select clock_timestamp() as now, pg_current_xact_id()::text::bigint as mark,
  set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)`;

const LOCK_HEADS = `select t.tree, t.key, t.namespace, t.uid, t.hidden, t.branch_point, t.status, t.status_message, t.seal_time, t.writer_id,
  t.writer_epoch, t.next_step_number, t.reward_sum, t.branch_reward_sum, t.byte_sum, clock_timestamp() as now
  from unnest($1::bigint[], $2::bigint[]) as k (tree, key)
  join ${SCHEMA}.trajectories as t on t.tree = k.tree and t.key = k.key
  order by t.tree, t.key for no key update of t`;

/** SQL of the step columns whose values come from the head. $7 belongs to the head only. */
const HEAD_COLUMNS: Readonly<Record<string, string>> = {
  tree: '$1',
  trajectory: '$2',
  step_number: '$3',
  writer_epoch: '$4',
  reward_sum: '$5',
  byte_sum: '$6',
  commit_time: 'm.update_time',
};
const OWN_COLUMNS = STEPS.order.filter(({ name }) => !(name in HEAD_COLUMNS));

/**
 * The update checks and locks the row: Postgres evaluates its conditions on the latest version, even if another
 * transaction has just changed it. A step is inserted only if the update changed the row. A row that another
 * transaction holds is skipped, as in `lockHeads`.
 */
const APPEND_ONE = `with free as materialized (
    select tree, key from ${SCHEMA}.trajectories where tree = $1::bigint and key = $2::bigint for no key update skip locked),
  m as (
    update ${SCHEMA}.trajectories as t set next_step_number = t.next_step_number + 1, reward_sum = $5::double precision, byte_sum = $6::bigint,
      branch_reward_sum = $7::double precision,
      update_time = clock_timestamp()
    from free where t.tree = free.tree and t.key = free.key and t.tree = $1::bigint and t.key = $2::bigint
      and t.next_step_number = $3::bigint and t.writer_epoch = $4::bigint and t.status = 'RUNNING' and not t.hidden
    returning t.update_time),
  s as (
    insert into ${SCHEMA}.steps (${namesOf(STEPS.order)})
    select ${stepValues()} from m)
  select update_time from m`;

function stepValues(): string {
  let parameter = 7;
  return STEPS.order
    .map(({ name, type }) => {
      const known = HEAD_COLUMNS[name];
      if (known !== undefined) return known;
      parameter += 1;
      return `$${parameter}::${type}`;
    })
    .join(', ');
}

async function backOff(attempt: number): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 2 ** attempt * 5 * (0.5 + Math.random())));
}

/** Returns host, port and database of a URL, without the password. */
function placeOf(url: string): string {
  try {
    const { hostname, port, pathname, searchParams } = new URL(url);
    return `${searchParams.get('host') ?? hostname}${port === '' ? '' : `:${port}`}${pathname}`;
  } catch {
    return '';
  }
}

interface Mark {
  readonly mark: bigint;
}

function markOf({ rows }: { readonly rows: readonly Mark[] }): bigint {
  const row = rows[0];
  if (row === undefined) throw new Error('the database returned no transaction id');
  return row.mark;
}
