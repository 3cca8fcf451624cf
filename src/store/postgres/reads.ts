import type { CompiledQuery } from 'kysely';
import { type CallScope, DatabaseSilent } from '../contract/store.ts';
import type { RangeExtrema } from '../sql/kit/engine.ts';
import type { ReadLanes, Timed } from '../sql/kit/reading/lanes.ts';
import type { ReadSlots } from '../sql/kit/reading/slots.ts';
import type { SeriesRange } from '../sql/kit/series_range.ts';
import { ExtremaReader } from './points.ts';
import type { Lease, Pool } from './pool.ts';
import { SCHEMA } from './schema.ts';

interface ReaderDeps {
  readonly pool: Pool;
  readonly lanes: ReadLanes;
  readonly slots: ReadSlots;
}

/** What was read, and for how long this thread parsed it. */
interface Parsed<Rows> {
  readonly rows: Rows;
  readonly parseMs: number;
}

/** Reads of committed rows, for one call or for work that outlives calls. */
export class Reader {
  readonly #deps: ReaderDeps;
  /** Its signal may be created when it is first read, so it is read as late as possible. */
  readonly #call: CallScope | undefined;
  readonly #plansByIndex: boolean;

  constructor(deps: ReaderDeps, call: CallScope | undefined, plansByIndex: boolean) {
    this.#deps = deps;
    this.#call = call;
    this.#plansByIndex = plansByIndex;
  }

  /** Runs a read and hands over its rows in a slot. `kind` is equal for reads of about the same cost. */
  async read<Row>(kind: string, work: (lease: Lease) => Promise<Row[]>): Promise<Row[]> {
    const { rows, parseMs } = await this.#readInLane(kind, work);
    return this.#deps.slots.handOver(rows, parseMs);
  }

  /** Runs a read that takes about as long as others of its kind. */
  #readInLane<Row>(kind: string, work: (lease: Lease) => Promise<Row[]>): Promise<Parsed<Row[]>> {
    const { lanes } = this.#deps;
    return lanes.run(kind, this.#call?.signal, async () => {
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
    const lease = await this.#deps.pool.lease(this.#call?.signal);
    const begun = performance.now();
    try {
      const rows = await (this.#plansByIndex ? inTransaction(lease, BEGIN_BY_INDEX, work) : work(lease));
      return { value: { rows, parseMs: lease.parseMs }, milliseconds: performance.now() - begun };
    } finally {
      lease.release();
    }
  }

  /** Returns the rows of each query, all read from one snapshot. */
  async snapshot(queries: readonly CompiledQuery<object>[]): Promise<object[][]> {
    const rowsIn = async (lease: Lease, { sql: text, parameters }: CompiledQuery<object>): Promise<object[]> =>
      (await lease.query(text, [...parameters])).rows;
    const { rows: tables, parseMs } = await this.#readInLane(queries.map(({ sql: text }) => text).join(';'), (lease) =>
      inTransaction(lease, BEGIN_SNAPSHOT, () => Promise.all(queries.map((query) => rowsIn(lease, query)))),
    );
    return this.#deps.slots.handOverAll(tables, parseMs);
  }

  extrema(series: bigint, ranges: readonly SeriesRange[]): Promise<RangeExtrema[]> {
    return this.read('extrema', async (lease) => {
      try {
        const reader = new ExtremaReader(SCHEMA, (text, values) => lease.rows(text, values));
        const begun = lease.query(`${BEGIN_SNAPSHOT}; ${BY_INDEX}`);
        return (await Promise.all([reader.read(series, ranges), begun]))[0];
      } finally {
        // Runs after a failed statement too. A connection that cannot roll back is discarded.
        await lease.rollback().catch(() => {});
      }
    });
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
