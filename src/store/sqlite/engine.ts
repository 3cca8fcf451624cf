import { type CompiledQuery, Kysely, type RawBuilder, type SqlBool, sql } from 'kysely';
import type { Digest } from '../../domain/ids.ts';
import type { TreeRange } from '../../domain/lineage.ts';
import type { Horizon } from '../contract/run.ts';
import type { CallScope } from '../contract/store.ts';
import type { FileLock } from '../file_guard/lock.ts';
import { isDamage } from '../file_guard/path.ts';
import type { FileWatch } from '../file_guard/watch.ts';
import {
  type Engine,
  type FoundState,
  type KeyedTable,
  Later,
  type LockedHead,
  type QueriesOf,
  type Queue,
  type QueuedRow,
  type RangeExtrema,
  type RowsOf,
  type StageName,
  type Tx,
  type Wanted,
} from '../sql/kit/engine.ts';
import type { PointBatch } from '../sql/kit/point_batch.ts';
import { readingDialect } from '../sql/kit/reading/dialect.ts';
import { nextIteration } from '../sql/kit/reading/event_loop.ts';
import type { SeriesRange } from '../sql/kit/series_range.ts';
import { type EngineParts, SharedEngine } from '../sql/kit/shared_engine.ts';
import type { Row, RowOf, RowUpdate, Table } from '../sql/kit/tables/table.ts';
import type { Tables } from '../sql/kit/tables.ts';
import { readNow } from '../sql/kit/transaction.ts';
import { bindDigest, isSet } from '../sql/kit/values.ts';
import { HEAD_COLUMNS, type HeadRowRead, readHead } from '../sql/log/append/heads.ts';
import { sqliteAggregates } from './aggregates.ts';
import type { RowWriter } from './bulk_rows.ts';
import { type FoundRow, nextOfStage, readQueued } from './claims.ts';
import { CLOCK, type Connection } from './connection.ts';
import type { Dialect } from './dialect.ts';
import { checkIntegrity } from './integrity.ts';
import { type PointWriter, upsertPoints } from './points.ts';
import type { ReadJob, ReadResult } from './read_job.ts';
import { objectsOf } from './read_thread_handle.ts';
import type { ReadThreads } from './read_threads.ts';
import type { Wal } from './wal.ts';
import type { WriteLock } from './write_lock.ts';

const NOW = sql<string>`${sql.raw(CLOCK)}()`;

const SELECT_HEAD = `select ${HEAD_COLUMNS.join()}, ${CLOCK}() as now from trajectories where tree = ? and key = ?`;
const SELECT_STATE = 'select size, referenced from states where namespace = ? and digest = ? and collected = 0';
const REFER_TO_STATE =
  'update states set referenced = 1, version = version + 1 where namespace = ? and digest = ? and collected = 0';

/** Length of the pause between two transactions of a deletion, as a multiple of the time that the first one took. */
const PAUSE_PER_WORK = 2;
/** Bound on that pause, in milliseconds. */
const LONGEST_PAUSE_MS = 100;

interface Parts extends EngineParts {
  readonly path: string;
  readonly threads: ReadThreads;
  readonly dialect: Dialect;
  readonly writing: Kysely<Tables>;
  readonly writer: Connection;
  readonly transact: <T>(work: (tx: Tx) => Promise<T>, writer?: object) => Promise<T>;
  readonly writeLock: WriteLock;
  readonly lock: FileLock;
  readonly watch: FileWatch;
  readonly points: PointWriter;
  readonly rows: RowWriter;
  readonly wal: Wal;
  /** Last assigned key of each table, even if its row was not committed. */
  readonly givenKeys: Map<KeyedTable, bigint>;
}

export class SqliteEngine extends SharedEngine<Parts> implements Engine {
  readonly now = NOW;
  readonly aggregates = sqliteAggregates;
  readonly jsonElements = (column: RawBuilder<unknown>) => sql`json_each(${column})`;
  readonly #writer: Connection;
  #reading: Kysely<Tables> | undefined;

  constructor(parts: Parts, call?: CallScope) {
    super(parts, call);
    this.#writer = parts.writer;
  }

  within(call: CallScope | undefined): Engine {
    return new SqliteEngine(this.parts, call);
  }

  get db(): Kysely<Tables> {
    this.#reading ??= new Kysely<Tables>({
      dialect: readingDialect(this.parts.dialect, ({ sql: text, parameters }) =>
        this.#read({ kind: 'objects', text, parameters }),
      ),
    });
    return this.#reading;
  }

  async #read<Job extends ReadJob>(job: Job): Promise<ReadResult<Job>> {
    return this.parts.slots.handOver(await this.#runOnThread(job));
  }

  async #runOnThread<Job extends ReadJob>(job: Job): Promise<ReadResult<Job>> {
    const { threads, watch } = this.parts;
    try {
      return await threads.run(job, this.call?.signal);
    } catch (error) {
      throw await watch.explain(error);
    }
  }

  /** The views that make statements interruptible hide the tables. Their condition costs more than reading a point. */
  table(name: keyof Tables, isBounded = false) {
    return sql.table(isBounded ? `main.${name}` : name);
  }

  hex(column: RawBuilder<unknown>) {
    return sql<string>`lower(hex(${column}))`;
  }

  async rows<Row extends readonly unknown[]>(query: RawBuilder<unknown> | CompiledQuery<unknown>): Promise<Row[]> {
    const { sql: text, parameters } = 'compile' in query ? query.compile(this.db) : query;
    return (await this.#read({ kind: 'arrays', text, parameters })) as Row[];
  }

  async readSnapshot<const Rows extends readonly object[]>(queries: QueriesOf<Rows>): Promise<RowsOf<Rows>> {
    const all: readonly CompiledQuery<object>[] = queries;
    const statements = all.map(({ sql: text, parameters }) => ({ text, parameters }));
    const found = await this.#runOnThread({ kind: 'snapshot', statements });
    const tables = found.map(({ columns, rows }) => objectsOf(columns, rows));
    return (await this.parts.slots.handOverAll(tables)) as RowsOf<Rows>;
  }

  write<T>(work: (tx: Tx) => Promise<T | Later<T>>): Promise<T> {
    return this.parts.transact(async (tx) => {
      this.call?.signal.throwIfAborted(); // The call may have ended while it waited for the write lock.
      const result = await work(tx);
      return result instanceof Later ? result.value : result;
    }, this);
  }

  async giveWayAfter<T>(transaction: () => Promise<T>): Promise<T> {
    const { writeLock } = this.parts;
    const begun = performance.now();
    const result = await transaction();
    const pause = Math.min((performance.now() - begun) * PAUSE_PER_WORK, LONGEST_PAUSE_MS);
    await (writeLock.hadOthers() ? new Promise((resolve) => setTimeout(resolve, pause)) : nextIteration());
    return result;
  }

  /** One transaction writes at a time, so rows need no locks. */
  lock<Q>(query: Q): Q {
    return query;
  }

  lockFree<Q>(query: Q): Q {
    return query;
  }

  async lockNames(): Promise<void> {}

  async nextKey(_tx: Tx, table: KeyedTable): Promise<bigint> {
    return this.#giveKeys(table, 1);
  }

  async nextKeys(_tx: Tx, table: KeyedTable, count: number): Promise<bigint[]> {
    const first = this.#giveKeys(table, count);
    return Array.from({ length: count }, (_, i) => first + BigInt(i));
  }

  /** Returns the first of `count` keys that were never used or assigned. */
  #giveKeys(table: KeyedTable, count: number): bigint {
    const [row] = this.#writer.prepare('select seq from sqlite_sequence where name = ?').all([table]) as {
      seq: bigint;
    }[];
    const [used, given] = [row?.seq ?? 0n, this.parts.givenKeys.get(table) ?? 0n];
    const last = used > given ? used : given;
    this.parts.givenKeys.set(table, last + BigInt(count));
    return last + 1n;
  }

  async changeMark(tx: Tx): Promise<bigint> {
    const { rows } = await sql<{ mark: bigint }>`update change_marks set mark = mark + 1 returning mark`.execute(tx);
    return markOf(rows);
  }

  async readHorizon(): Promise<Horizon> {
    const { rows } = await sql<{ mark: bigint }>`select mark from change_marks`.execute(this.db);
    return { next: markOf(rows) + 1n, open: [], era: '' };
  }

  /** The prepared statistics make every read use indexes. */
  byIndex(): Engine {
    return this;
  }

  /** One transaction writes at a time, and its mark is above all committed ones. */
  changedSince(mark: RawBuilder<unknown>, { next }: Horizon) {
    return [sql<SqlBool>`${mark} >= ${next}`];
  }

  async lockHeads(
    _tx: Tx,
    refs: readonly { tree: bigint; key: bigint }[],
  ): Promise<{ heads: LockedHead[]; now: string }> {
    const select = this.#writer.prepare(SELECT_HEAD);
    const heads: LockedHead[] = [];
    let now = '';
    for (const { tree, key } of refs) {
      const [row] = select.all([tree, key]) as HeadRowRead[];
      if (row === undefined) continue;
      now = row.now;
      heads.push(readHead(row));
    }
    return { heads, now };
  }

  async findStates(_tx: Tx, namespace: string, digests: readonly Digest[]): Promise<FoundState[]> {
    const select = this.#writer.prepare(SELECT_STATE);
    return digests.flatMap((digest) => {
      const rows = select.all([namespace, bindDigest(digest)]) as { size: bigint; referenced: bigint }[];
      return rows.map(({ size, referenced }) => ({ digest, size: Number(size), referenced: isSet(referenced) }));
    });
  }

  async referToStates(_tx: Tx, namespace: string, digests: readonly Digest[]): Promise<Digest[]> {
    const update = this.#writer.prepare(REFER_TO_STATE);
    return digests.filter((digest) => Number(update.run([namespace, bindDigest(digest)]).changes) > 0);
  }

  /** Transactions wait for no row locks. */
  async waitBriefly(): Promise<void> {}

  /** One transaction writes at a time, so its references are committed before the next one changes a state. */
  async outwaitReferrers(): Promise<boolean> {
    return true;
  }

  async insertRows<T extends Table>(_tx: Tx, table: T, rows: readonly RowOf<T>[], onConflict?: string): Promise<void> {
    this.parts.rows.insert(table, rows, onConflict);
  }

  async updateRows(_tx: Tx, update: RowUpdate, rows: readonly Row[]): Promise<void> {
    this.parts.rows.update(update, rows);
  }

  among(column: RawBuilder<unknown>, keys: readonly bigint[]) {
    return sql<SqlBool>`${column} in (select value from json_each(${`[${keys.join(',')}]`}))`;
  }

  /** Plans use indexes already, and statements are planned once. */
  async beginClaim(tx: Tx): Promise<{ now: string; mark: bigint }> {
    return { now: await readNow(tx, this.now), mark: await this.changeMark(tx) };
  }

  async lockQueued(_tx: Tx, queues: readonly Queue[], wanted: Wanted, limit: number): Promise<QueuedRow[]> {
    const rows = (query: RawBuilder<unknown>) => this.#readOwn(query.compile(this.parts.writing)) as FoundRow[];
    return this.#withKeys(readQueued(this, rows, queues, wanted, limit));
  }

  async lockNext(_tx: Tx, { namespace, id }: StageName, limit: number): Promise<QueuedRow[]> {
    const query = this.kept.of('next of stage', [namespace, id, limit], (of, named, most) => {
      const next = nextOfStage(this, { namespace: of, id: named }, sql`${most}`);
      return { compile: () => next.compile(this.parts.writing) };
    });
    return this.#withKeys(this.#readOwn(query) as FoundRow[]);
  }

  #withKeys(rows: readonly FoundRow[]): QueuedRow[] {
    const first = rows.length === 0 ? 0n : this.#giveKeys('trajectories', rows.length);
    return rows.map((row, i) => Object.assign(row, { next_trajectory: first + BigInt(i) }));
  }

  async ask<Row>(_tx: Tx, query: CompiledQuery<Row>): Promise<Row[]> {
    return this.#readOwn(query) as Row[];
  }

  /** Reads on the writing connection, which sees the transaction's own writes. */
  #readOwn({ sql: text, parameters }: CompiledQuery<unknown>): unknown[] {
    return this.#writer.prepare(text).all(parameters);
  }

  async upsertPoints(batch: PointBatch, tx?: Tx): Promise<boolean> {
    return tx === undefined ? this.parts.points.write(batch, this.call?.signal) : upsertPoints(this.#writer, batch);
  }

  readExtrema(series: bigint, ranges: readonly SeriesRange[]): Promise<RangeExtrema[]> {
    return this.#read({ kind: 'extrema', series, ranges });
  }

  hasPair(column: Parameters<Engine['hasPair']>[0], key: string, value: string) {
    return sql<boolean>`exists (select 1 from json_each(${column}) as pair where pair.key = ${key} and pair.value = ${value})`;
  }

  hasItem(column: Parameters<Engine['hasItem']>[0], item: string) {
    return sql<boolean>`exists (select 1 from json_each(${column}) as item where item.value = ${item})`;
  }

  selectRanges(ranges: readonly TreeRange[]) {
    const json = `[${ranges.map(({ tree, key, from, to }) => `[${tree},${key},${from},${to}]`).join()}]`;
    return sql`select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(${json})`;
  }

  hoursAgo(hours: number) {
    return sql<string>`(strftime('%Y-%m-%dT%H:%M:%f', 'now', ${`-${hours * 3600} seconds`}) || '000Z')`;
  }

  checkDatabase() {
    return checkIntegrity(this.parts.path, this.call?.signal);
  }

  isDamage(error: unknown): boolean {
    return isDamage(error);
  }

  emptyLog(): Promise<void> {
    return this.parts.wal.empty();
  }

  protected async closeParts(): Promise<void> {
    const { threads, writing, watch, lock } = this.parts;
    watch.close();
    await threads.close();
    await writing.destroy();
    watch.release();
    lock.release();
  }
}

function markOf(rows: readonly { readonly mark: bigint }[]): bigint {
  if (rows[0] === undefined) throw new Error('the schema has no mark of changes');
  return rows[0].mark;
}
