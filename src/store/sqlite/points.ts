import type { CallScope } from '../contract/store.ts';
import type { Tx } from '../sql/kit/engine.ts';
import { bindReal } from '../sql/kit/values.ts';
import type { PointBatch, Points, RangeExtrema, SeriesRange } from '../sql/records/metric/points.ts';
import type { Connection } from './connection.ts';
import { isLocked } from './errors.ts';
import { STILL_WANTED } from './interruption.ts';
import type { SqliteReads } from './reads.ts';
import type { Writes } from './writes.ts';

export interface PointsDeps {
  readonly writer: Connection;
  readonly pointWriter: PointWriter;
}

/** Points of metric series, for one call or for work that outlives calls. */
export class SqlitePoints implements Points {
  readonly #deps: PointsDeps;
  readonly #reads: SqliteReads;
  readonly #call: CallScope | undefined;

  constructor(deps: PointsDeps, reads: SqliteReads, call: CallScope | undefined) {
    this.#deps = deps;
    this.#reads = reads;
    this.#call = call;
  }

  async upsert(batch: PointBatch, tx?: Tx): Promise<boolean> {
    const { writer, pointWriter } = this.#deps;
    return tx === undefined ? pointWriter.write(batch, this.#call?.signal) : upsertPoints(writer, batch);
  }

  readExtrema(series: bigint, ranges: readonly SeriesRange[]): Promise<RangeExtrema[]> {
    return this.#reads.read({ kind: 'extrema', series, ranges });
  }
}

const FIND_RUN = 'select key from runs where namespace = ? and id = ? and not hidden';
const FIND_STAGE = 'select key from stages where namespace = ? and id = ? and run = ?';
const FIND_SERIES = 'select key from metric_series where run = ? and stage = ? and name = ?';
const UPSERT = `insert into metric_points (series, metric_step, namespace, value) values (?, ?, ?, ?)
  on conflict (series, metric_step) do update set value = excluded.value`;

/** Upserts all points of a batch or none, in a transaction. Stores nothing if the run or a series does not exist. */
function upsertPoints(writer: Connection, batch: PointBatch): boolean {
  const keys = seriesKeys(writer, batch);
  if (keys === undefined) return false;
  const { namespace, places, metricSteps, values } = batch;
  const upsert = writer.prepare(UPSERT);
  for (const [i, place] of places.entries()) {
    upsert.run([keys[place], metricSteps[i], namespace, bindReal(values[i]!)]);
  }
  return true;
}

/** Returns undefined if the run or a series does not exist. */
function seriesKeys(writer: Connection, { namespace, runId, series }: PointBatch): bigint[] | undefined {
  const keyOf = (text: string, values: readonly unknown[]) => {
    const [row] = writer.prepare(text).all(values) as { key: bigint }[];
    return row?.key;
  };
  const run = keyOf(FIND_RUN, [namespace, runId]);
  if (run === undefined) return undefined;
  const keys: bigint[] = [];
  for (const { stageId, name } of series) {
    const stage = stageId === undefined ? 0n : keyOf(FIND_STAGE, [namespace, stageId, run]);
    const key = stage === undefined ? undefined : keyOf(FIND_SERIES, [run, stage, name]);
    if (key === undefined) return undefined;
    keys.push(key);
  }
  return keys;
}

interface Waiting {
  readonly batch: PointBatch;
  readonly signal: AbortSignal | undefined;
  readonly resolve: (stored: boolean) => void;
  readonly reject: (error: unknown) => void;
}

/** Points per transaction. Nothing else runs in the process until it ends. */
const GROUP_POINTS = 20_000;

/**
 * Writes waiting batches together, because each commit waits for the disk. A single batch waits for one
 * iteration of the event loop.
 */
export class PointWriter {
  readonly #writer: Connection;
  readonly #writes: Writes;
  readonly #waiting: Waiting[] = [];
  #running = false;

  constructor(writer: Connection, writes: Writes) {
    this.#writer = writer;
    this.#writes = writes;
  }

  /**
   * Returns false if the run or a series does not exist, so that nothing was stored. A batch whose signal is aborted
   * before its group begins is not stored and rejects with the signal's reason.
   */
  write(batch: PointBatch, signal: AbortSignal | undefined): Promise<boolean> {
    const { promise, resolve, reject } = Promise.withResolvers<boolean>();
    this.#waiting.push({ batch, signal, resolve, reject });
    if (!this.#running) void this.#run();
    return promise;
  }

  async #run(): Promise<void> {
    this.#running = true;
    while (this.#waiting.length > 0) {
      // Calls that have arrived by now join the group.
      await new Promise((resolve) => setImmediate(resolve));
      this.#dropLeft();
      if (this.#waiting.length > 0) await this.#writeGroup(this.#take());
    }
    this.#running = false;
  }

  #dropLeft(): void {
    for (const entry of this.#waiting.splice(0)) {
      if (entry.signal?.aborted) entry.reject(entry.signal.reason);
      else this.#waiting.push(entry);
    }
  }

  /** Takes batches for one group, at least one. */
  #take(): Waiting[] {
    let points = 0;
    const end = this.#waiting.findIndex(({ batch }, i) => {
      points += batch.values.length;
      return i > 0 && points > GROUP_POINTS;
    });
    return this.#waiting.splice(0, end === -1 ? this.#waiting.length : end);
  }

  async #writeGroup(group: readonly Waiting[]): Promise<void> {
    try {
      const stored = await this.#writes.runAtOnce(() => group.map(({ batch }) => upsertPoints(this.#writer, batch)));
      for (const [i, { resolve }] of group.entries()) resolve(stored[i]!);
    } catch (error) {
      // A failing batch must not fail the others. A locked file fails all of them.
      if (group.length > 1 && !isLocked(error)) for (const each of group) await this.#writeGroup([each]);
      else for (const { reject } of group) reject(error);
    }
  }
}

/** The product is computed once for each statement, so a read of many ranges can be cancelled between two of them. */
const IN_RANGE = `series = ? * ${STILL_WANTED}() and metric_step >= ? and metric_step <= ?`;

interface Found {
  readonly value: number | string | null;
  readonly metric_step: bigint | null;
}

/** Aggregates without groups, one range at a time, are several times as fast as one grouped statement. */
export function readExtrema(reader: Connection, series: bigint, { from, to }: SeriesRange): RangeExtrema {
  // A short range has few points, so it is read without the view that makes statements interruptible.
  const table = to - from < 100_000n ? 'main.metric_points' : 'metric_points';
  // With a single `min` or `max`, SQLite returns the other columns from the row of the extremum. The primary key is
  // read in order, so that is the first such row.
  const find = (extremum: string, condition = '') => {
    const text = `select ${extremum} as value, metric_step from ${table} where ${IN_RANGE} ${condition}`;
    return (reader.prepare(text).all([series, from, to]) as Found[])[0]!;
  };
  const [lowest, largest] = [find('min(value)'), find('max(value)')];
  if (lowest.value === null || lowest.value === 'NaN') return {};
  // NaN is a text, which sorts above every number, so it hides the largest one.
  const highest = largest.value === 'NaN' ? find('max(value)', "and value <> 'NaN'") : largest;
  return { lowest: pointOf(lowest), highest: pointOf(highest) };
}

function pointOf({ value, metric_step }: Found) {
  if (typeof value !== 'number' || metric_step === null) throw new Error('a range with numbers has no smallest one');
  return { metricStep: metric_step, value };
}
