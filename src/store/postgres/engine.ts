import { CompiledQuery, Kysely, type PostgresDialect, type RawBuilder, type SqlBool, sql } from 'kysely';
import type { Change } from '../../domain/change.ts';
import type { Digest } from '../../domain/ids.ts';
import type { TreeRange } from '../../domain/lineage.ts';
import type { Horizon } from '../contract/run.ts';
import type { CallScope } from '../contract/store.ts';
import type { ReadOnlyWatch } from '../postgres_access/read_only_watch.ts';
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
  type RangeExtrema,
  type RowLock,
  type RowsOf,
  type SeenAppend,
  type StageName,
  type Tx,
  type Wanted,
  type WriteOptions,
} from '../sql/kit/engine.ts';
import type { PointBatch } from '../sql/kit/point_batch.ts';
import { readingDialect } from '../sql/kit/reading/dialect.ts';
import { nextIteration } from '../sql/kit/reading/event_loop.ts';
import type { ReadLanes } from '../sql/kit/reading/lanes.ts';
import type { SeriesRange } from '../sql/kit/series_range.ts';
import { type EngineParts, SharedEngine } from '../sql/kit/shared_engine.ts';
import { padded } from '../sql/kit/statement_shapes.ts';
import type { Row, RowOf, RowUpdate, Table } from '../sql/kit/tables/table.ts';
import type { Tables } from '../sql/kit/tables.ts';
import { HEAD_COLUMNS, type HeadRowRead, readHead } from '../sql/log/append/heads.ts';
import { postgresAggregates } from './aggregates.ts';
import { appendSeen } from './appends.ts';
import { insertRows, updateRows } from './bulk_rows.ts';
import { lockQueued, nextOfStage } from './claims.ts';
import { isDamage, isRetryable } from './errors.ts';
import { checkRelations } from './integrity.ts';
import type { Notifier } from './notify.ts';
import { upsertPointsText, upsertPointsValues } from './points.ts';
import type { Lease, Pool } from './pool.ts';
import { Reader } from './reads.ts';
import { SCHEMA, sequenceOf } from './schema.ts';
import { findStates, outwaitReferrers, referToStates } from './state_rows.ts';
import { kyselyOver, PipelinedTransaction } from './transactions.ts';

const MAX_TRIES = 5;

interface Parts extends EngineParts {
  readonly pool: Pool;
  readonly dialect: PostgresDialect;
  readonly lanes: ReadLanes;
  readonly notifier: Notifier;
  readonly readOnly: ReadOnlyWatch;
}

export class PostgresEngine extends SharedEngine<Parts> implements Engine {
  readonly now = sql<string>`clock_timestamp()`;
  readonly aggregates = postgresAggregates;
  readonly #transactions = new WeakMap<Tx, PipelinedTransaction>();
  readonly #reader: Reader;
  #reading: Kysely<Tables> | undefined;

  constructor(parts: Parts, call?: CallScope, plansByIndex = false) {
    super(parts, call);
    this.#reader = new Reader(parts, call, plansByIndex);
  }

  within(call: CallScope | undefined): Engine {
    return new PostgresEngine(this.parts, call);
  }

  byIndex(): Engine {
    return new PostgresEngine(this.parts, this.call, true);
  }

  get db(): Kysely<Tables> {
    this.#reading ??= new Kysely<Tables>({
      dialect: readingDialect(this.parts.dialect, ({ sql: text, parameters }) =>
        this.#reader.read(text, async (lease) => (await lease.query(text, [...parameters])).rows),
      ),
    }).withSchema(SCHEMA);
    return this.#reading;
  }

  /** Returns whether failed work may succeed on another attempt. */
  #isWorthRetrying(error: unknown): boolean {
    const cause = (error as Error).cause ?? error;
    return isRetryable(cause) || this.parts.pool.forget(cause);
  }

  #lease(): Promise<Lease> {
    return this.parts.pool.lease(this.call?.signal);
  }

  table(name: keyof Tables) {
    return sql.table(`${SCHEMA}.${name}`);
  }

  hex(column: RawBuilder<unknown>) {
    return sql<string>`encode(${column}, 'hex')`;
  }

  jsonElements(column: RawBuilder<unknown>) {
    return sql`json_array_elements(cast(${column} as json))`;
  }

  async rows<Row extends readonly unknown[]>(query: RawBuilder<unknown> | CompiledQuery<unknown>): Promise<Row[]> {
    const { sql: text, parameters } = 'compile' in query ? query.compile(this.db) : query;
    return (await this.#reader.read(text, (lease) => lease.rows(text, [...parameters]))) as unknown[] as Row[];
  }

  async readSnapshot<const Rows extends readonly object[]>(queries: QueriesOf<Rows>): Promise<RowsOf<Rows>> {
    return (await this.#reader.snapshot(queries)) as RowsOf<Rows>;
  }

  async write<T>(work: (tx: Tx) => Promise<T | Later<T>>, options: WriteOptions = {}): Promise<T> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#writeOnce(work, options);
      } catch (error) {
        if (attempt >= MAX_TRIES || !this.#isWorthRetrying(error)) throw error;
        await backOff(attempt);
      }
    }
  }

  async #writeOnce<T>(work: (tx: Tx) => Promise<T | Later<T>>, options: WriteOptions): Promise<T> {
    this.parts.slots.wrote(this);
    const lease = await this.#lease();
    try {
      const transaction = new PipelinedTransaction(lease, kyselyOver(lease, SCHEMA));
      this.#transactions.set(transaction.db, transaction);
      if (options.unbounded === true) transaction.unbound();
      try {
        const result = await work(transaction.db);
        await transaction.commit();
        return result instanceof Later ? await result.value : result;
      } catch (error) {
        // The first failure is the cause. A connection that cannot roll back is discarded.
        const cause = transaction.causeOf(error);
        await transaction.rollback().catch(() => {});
        throw cause;
      }
    } finally {
      lease.release();
    }
  }

  checkDatabase() {
    return checkRelations((work) => this.write(work, { unbounded: true }));
  }

  isDamage(error: unknown): boolean {
    return isDamage(error);
  }

  async giveWayAfter<T>(transaction: () => Promise<T>): Promise<T> {
    const result = await transaction();
    await nextIteration();
    return result;
  }

  lock<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q {
    if (lock === 'delete') return query.forUpdate();
    return lock === 'write' ? query.forNoKeyUpdate() : query.forKeyShare();
  }

  lockFree<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q {
    return this.lock(query, lock).skipLocked();
  }

  async lockNames(tx: Tx, names: readonly string[]): Promise<void> {
    // All users of the database share the keys of advisory locks, so row keys alone could collide.
    const all = names.map((name) => `${SCHEMA}.${name}`);
    await sql`select pg_advisory_xact_lock(hashtextextended(n, 0)) from unnest(${all}::text[]) as n`.execute(tx);
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
    const rows = (await this.#pipelineOf(tx).ask(text, parameters)).rows as HeadRowRead[];
    return { heads: rows.map(readHead), now: rows[0]?.now ?? '' };
  }

  findStates(tx: Tx, namespace: string, digests: readonly Digest[], purpose: 'refer' | 'lock'): Promise<FoundState[]> {
    return findStates(this.#pipelineOf(tx), namespace, digests, purpose);
  }

  referToStates(tx: Tx, namespace: string, digests: readonly Digest[]): Promise<Digest[]> {
    return referToStates(this.#pipelineOf(tx), namespace, digests);
  }

  outwaitReferrers(): Promise<boolean> {
    return outwaitReferrers(this.db);
  }

  async waitBriefly(tx: Tx): Promise<void> {
    this.#pipelineOf(tx).send(WAIT_BRIEFLY);
  }

  async insertRows<T extends Table>(tx: Tx, table: T, rows: readonly RowOf<T>[], onConflict?: string): Promise<void> {
    insertRows(this.#pipelineOf(tx), table, rows, onConflict);
  }

  async updateRows(tx: Tx, update: RowUpdate, rows: readonly Row[]): Promise<void> {
    updateRows(this.#pipelineOf(tx), update, rows);
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
    return (await this.#pipelineOf(tx).ask(text, [...parameters])).rows as Row[];
  }

  async appendSeen(appends: readonly SeenAppend[]): Promise<Map<bigint, string>> {
    this.parts.slots.wrote();
    const lease = await this.#lease();
    try {
      const { text, values } = appendSeen(appends);
      const { rows } = await lease.query(text, values);
      return new Map((rows as { key: bigint; now: string }[]).map(({ key, now }) => [key, now]));
    } catch (error) {
      if (this.#isWorthRetrying(error)) return new Map();
      throw error;
    } finally {
      lease.release();
    }
  }

  async upsertPoints(batch: PointBatch, tx?: Tx): Promise<boolean> {
    const values = upsertPointsValues(batch);
    const stored =
      tx === undefined ? this.#upsertAlone(values) : tx.executeQuery(CompiledQuery.raw(UPSERT_POINTS, values));
    return Number((await stored).numAffectedRows ?? 0) === batch.values.length;
  }

  /** Without `tx`, the statement is a transaction of its own. */
  async #upsertAlone(values: unknown[]): Promise<{ numAffectedRows: number }> {
    this.parts.slots.wrote();
    for (let attempt = 1; ; attempt += 1) {
      const lease = await this.#lease();
      try {
        return { numAffectedRows: (await lease.query(UPSERT_POINTS, values)).rowCount ?? 0 };
      } catch (error) {
        if (attempt >= MAX_TRIES || !this.#isWorthRetrying(error)) throw error;
      } finally {
        lease.release();
      }
      await backOff(attempt);
    }
  }

  readExtrema(series: bigint, ranges: readonly SeriesRange[]): Promise<RangeExtrema[]> {
    return this.#reader.extrema(series, ranges);
  }

  hasPair(column: Parameters<Engine['hasPair']>[0], key: string, value: string) {
    return sql<boolean>`(${column}::json ->> ${key}) = ${value}`;
  }

  hasItem(column: Parameters<Engine['hasItem']>[0], item: string) {
    return sql<boolean>`exists (select 1 from json_array_elements_text(${column}::json) as item (value) where item.value = ${item})`;
  }

  selectRanges(ranges: readonly TreeRange[]) {
    const columns = (['tree', 'key', 'from', 'to'] as const).map(
      (name) => sql`${ranges.map((range) => range[name])}::bigint[]`,
    );
    return sql`select * from unnest(${sql.join(columns)})`;
  }

  hoursAgo(hours: number) {
    return sql<string>`(clock_timestamp() - make_interval(secs => ${hours * 3600}))`;
  }

  override announce(changes: readonly Change[]): void {
    super.announce(changes);
    this.parts.notifier.announce(changes);
  }

  protected async closeParts(): Promise<void> {
    const { notifier, lanes, pool, readOnly } = this.parts;
    await readOnly.close();
    await notifier.close();
    lanes.close(new Error('the store is closed'));
    await pool.end();
  }

  #pipelineOf(tx: Tx): PipelinedTransaction {
    const transaction = this.#transactions.get(tx);
    if (transaction === undefined) throw new Error('a write outside a transaction of this engine');
    return transaction;
  }
}

/** Longer than a typical commit, and short enough for other members of the group. */
const WAIT_BRIEFLY = `set local lock_timeout = '100ms'`;

const UPSERT_POINTS = upsertPointsText(SCHEMA);

/** Settings that last until the transaction ends. */
const BEGIN_CLAIM = `select clock_timestamp() as now, pg_current_xact_id()::text::bigint as mark,
  set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)`;

const LOCK_HEADS = `select ${HEAD_COLUMNS.map((name) => `t.${name}`).join()}, clock_timestamp() as now
  from unnest($1::bigint[], $2::bigint[]) as k (tree, key)
  join ${SCHEMA}.trajectories as t on t.tree = k.tree and t.key = k.key
  order by t.tree, t.key for no key update of t`;

async function backOff(attempt: number): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 2 ** attempt * 5 * (0.5 + Math.random())));
}

interface Mark {
  readonly mark: bigint;
}

function markOf({ rows }: { readonly rows: readonly Mark[] }): bigint {
  const row = rows[0];
  if (row === undefined) throw new Error('the database returned no transaction id');
  return row.mark;
}
