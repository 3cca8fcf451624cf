import type { CompiledQuery, Kysely, RawBuilder } from 'kysely';
import { type CallScope, DatabaseSilent } from '../contract/store.ts';
import type { QueriesOf, Reads, RowsOf } from '../sql/kit/engine.ts';
import type { ReadingDbs } from '../sql/kit/reading/dbs.ts';
import type { ReadLanes, Timed } from '../sql/kit/reading/lanes.ts';
import type { ReadSlots } from '../sql/kit/reading/slots.ts';
import type { Tables } from '../sql/kit/tables.ts';
import type { Lease, Pool } from './pool.ts';

export interface ReadsDeps {
  readonly pool: Pool;
  readonly dbs: ReadingDbs;
  readonly lanes: ReadLanes;
  readonly slots: ReadSlots;
}

/** What was read, and for how long this thread parsed it. */
interface Parsed<Rows> {
  readonly rows: Rows;
  readonly parseMs: number;
}

/** Runs one statement and returns its rows as arrays. */
export type Ask = (text: string, values: unknown[]) => Promise<unknown[][]>;

/** Reads of committed rows, for one call or for work that outlives calls. */
export class PostgresReads implements Reads {
  readonly #deps: ReadsDeps;
  /** Its signal may be created when it is first read, so it is read as late as possible. */
  readonly #call: CallScope | undefined;
  readonly #plansByIndex: boolean;
  #db: Kysely<Tables> | undefined;

  constructor(deps: ReadsDeps, call: CallScope | undefined, plansByIndex: boolean) {
    this.#deps = deps;
    this.#call = call;
    this.#plansByIndex = plansByIndex;
  }

  get db(): Kysely<Tables> {
    this.#db ??= this.#deps.dbs.over(({ sql: text, parameters }) =>
      this.#read(text, async (lease) => (await lease.query(text, [...parameters])).rows),
    );
    return this.#db;
  }

  async rows<Row extends readonly unknown[]>(query: RawBuilder<unknown> | CompiledQuery<unknown>): Promise<Row[]> {
    const { sql: text, parameters } = 'compile' in query ? query.compile(this.db) : query;
    return (await this.#read(text, (lease) => lease.rows(text, [...parameters]))) as unknown[] as Row[];
  }

  async snapshot<const Rows extends readonly object[]>(queries: QueriesOf<Rows>): Promise<RowsOf<Rows>> {
    const all: readonly CompiledQuery<object>[] = queries;
    const rowsIn = async (lease: Lease, { sql: text, parameters }: CompiledQuery<object>): Promise<object[]> =>
      (await lease.query(text, [...parameters])).rows;
    const { rows: tables, parseMs } = await this.#readInLane(all.map(({ sql: text }) => text).join(';'), (lease) =>
      inTransaction(lease, BEGIN_SNAPSHOT, () => Promise.all(all.map((query) => rowsIn(lease, query)))),
    );
    return (await this.#deps.slots.handOverAll(tables, this.#call?.namespace, parseMs)) as RowsOf<Rows>;
  }

  /** Runs several statements, each of which depends on the rows of the one before, in one snapshot. */
  inSnapshot<Row>(kind: string, work: (ask: Ask) => Promise<Row[]>): Promise<Row[]> {
    return this.#read(kind, async (lease) => {
      try {
        const begun = lease.query(`${BEGIN_SNAPSHOT}; ${BY_INDEX}`);
        return (await Promise.all([work((text, values) => lease.rows(text, values)), begun]))[0];
      } finally {
        // Runs after a failed statement too. A connection that cannot roll back is discarded.
        await lease.rollback().catch(() => {});
      }
    });
  }

  /** Runs a read and hands over its rows in a slot. `kind` is equal for reads of about the same cost. */
  async #read<Row>(kind: string, work: (lease: Lease) => Promise<Row[]>): Promise<Row[]> {
    const { rows, parseMs } = await this.#readInLane(kind, work);
    return this.#deps.slots.handOver(rows, this.#call?.namespace, parseMs);
  }

  /** Runs a read that takes about as long as others of its kind. */
  #readInLane<Row>(kind: string, work: (lease: Lease) => Promise<Row[]>): Promise<Parsed<Row[]>> {
    const { lanes } = this.#deps;
    return lanes.run(kind, this.#call, async () => {
      try {
        return await this.#readOnce(work).catch((error: unknown) => {
          if (this.#deps.pool.forget(error)) return this.#readOnce(work);
          throw error;
        });
      } catch (error) {
        // A1: waiting reads must not each wait until the database is found silent.
        if (error instanceof DatabaseSilent) lanes.rejectWaiting(error);
        throw error;
      }
    });
  }

  async #readOnce<Row>(work: (lease: Lease) => Promise<Row[]>): Promise<Timed<Parsed<Row[]>>> {
    const lease = await this.#deps.pool.lease(this.#call);
    const begun = performance.now();
    try {
      const rows = await (this.#plansByIndex ? inTransaction(lease, BEGIN_BY_INDEX, work) : work(lease));
      return { value: { rows, parseMs: lease.parseMs }, milliseconds: performance.now() - begun };
    } finally {
      lease.release();
    }
  }
}

/**
 * Settings of a transaction that reads by index. The generic plan is the same for all values, so a connection plans
 * each statement once.
 */
const BY_INDEX = `${['seqscan', 'bitmapscan', 'sort', 'hashjoin', 'mergejoin']
  .map((kind) => `set local enable_${kind} = off`)
  .join('; ')}; set local plan_cache_mode = force_generic_plan`;
const BEGIN_BY_INDEX = `begin read only; ${BY_INDEX}`;

/** All statements of the transaction see what was committed before its first query. */
const BEGIN_SNAPSHOT = 'begin isolation level repeatable read read only';

/**
 * Runs the statements of a read in one transaction, sent in one go: that takes no more round trips than one statement
 * alone.
 */
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
