import { type Series, spliced } from '../tree/series.ts';

/** A metric of a run, thinned to what a plot shows. */
export interface MetricRead {
  readonly runId: string;
  readonly series: Series;
  readonly points: number;
}

/** What the server says about a metric series of a run. */
export interface WrittenSeries {
  readonly key: string;
  readonly points: number;
  /** Points from this step on may be new or changed. */
  readonly changedFrom: number;
}

export interface StepRange {
  readonly from: number | undefined;
  /** Included. */
  readonly to: number | undefined;
}

/** Reads metrics of runs by their keys, thinned. */
export type ReadMetrics = (
  runIds: readonly string[],
  keys: readonly string[],
  range: StepRange,
) => Promise<ReadonlyMap<string, readonly MetricRead[]>>;

/** Keys of one call. */
const KEYS = 100;
/** A line with more points is read again as a whole, thinned. */
export const MOST_POINTS = 2000;

/**
 * The lines of metric plots. Reads only what is shown: a metric when it is wanted first, and afterwards its points from
 * the first changed step on. Lines of a former range are shown until those of the new one have been read.
 */
export class MetricBook {
  readonly #read: ReadMetrics;
  readonly #range: StepRange;
  readonly #onChange: (error?: unknown) => void;
  /** Lines of runs by key. */
  readonly #lines: Map<string, readonly MetricRead[]>;
  readonly #points = new Map<string, Map<string, number>>();
  /** First step to read, by key and run. Undefined: the whole range. */
  readonly #due = new Map<string, Map<string, number | undefined>>();
  readonly #wanted: Set<string>;
  #busy = false;

  constructor(read: ReadMetrics, range: StepRange, onChange: (error?: unknown) => void, before?: MetricBook) {
    this.#read = read;
    this.#range = range;
    this.#onChange = onChange;
    this.#lines = new Map(before === undefined ? [] : before.#lines);
    this.#wanted = new Set(before === undefined ? [] : before.#wanted);
  }

  /** Names of all metrics, in order. */
  get keys(): string[] {
    return [...this.#points.keys()].sort();
  }

  /** Returns the same array as before if nothing of it has changed. */
  linesOf(key: string): readonly MetricRead[] {
    return this.#lines.get(key) ?? NO_LINES;
  }

  /** Takes what the server says about the series of a run. */
  note(runId: string, written: readonly WrittenSeries[]): void {
    let hasNew = false;
    for (const { key, points, changedFrom } of written) {
      const isNew = !this.#points.get(key)?.has(runId);
      hasNew ||= isNew;
      entryOf(this.#points, key).set(runId, points);
      const due = entryOf(this.#due, key);
      const before = due.has(runId) ? due.get(runId) : changedFrom;
      due.set(runId, isNew || before === undefined ? undefined : Math.min(before, changedFrom));
    }
    // New points are shown when they have been read.
    if (hasNew) this.#onChange();
    void this.#work();
  }

  /** Says whether a plot is on screen. */
  want(key: string, isWanted: boolean): void {
    if (isWanted) this.#wanted.add(key);
    else this.#wanted.delete(key);
    void this.#work();
  }

  async #work(): Promise<void> {
    if (this.#busy) return;
    this.#busy = true;
    // Plots that come on screen together are read together: each has an observer, whose callbacks are tasks of a frame.
    await new Promise((resolve) => setTimeout(resolve, 0));
    try {
      for (let next = this.#take(); next !== undefined; next = this.#take()) {
        await this.#readSome(next);
        this.#onChange();
      }
    } catch (error) {
      this.#onChange(error);
    }
    this.#busy = false;
  }

  /** Takes wanted metrics that are due from the same step on. */
  #take(): Part | undefined {
    const keys: string[] = [];
    let first: Due | undefined;
    for (const key of this.#wanted) {
      const due = this.#due.get(key);
      if (due === undefined || keys.length === KEYS) continue;
      const own: Due = { from: leastOf(due.values()), runIds: [...due.keys()] };
      first ??= own;
      if (own.from !== first.from || own.runIds.join() !== first.runIds.join()) continue;
      keys.push(key);
      this.#due.delete(key);
    }
    return first === undefined ? undefined : { keys, ...first };
  }

  async #readSome({ keys, from, runIds }: Part): Promise<void> {
    const { from: low, to } = this.#range;
    if (from !== undefined && to !== undefined && from > to) return;
    const isWhole = from === undefined || from <= (low ?? Number.NEGATIVE_INFINITY);
    const start = isWhole ? low : from;
    let read: ReadonlyMap<string, readonly MetricRead[]>;
    try {
      read = await this.#read(runIds, keys, { from: start, to });
    } catch (error) {
      for (const key of keys) for (const runId of runIds) entryOf(this.#due, key).set(runId, undefined);
      throw error;
    }
    for (const key of keys) {
      const lines = new Map(this.#lines.get(key)?.map((line) => [line.runId, line]));
      for (const runId of runIds) {
        const found = read.get(key)?.find((line) => line.runId === runId);
        const known = lines.get(runId)?.series;
        const series = isWhole ? (found?.series ?? NONE) : spliced(known ?? NONE, start ?? 0, found?.series ?? NONE);
        const all = isWhole ? found?.points : series.steps.length;
        const points = low === undefined && to === undefined ? this.#points.get(key)?.get(runId) : all;
        lines.set(runId, { runId, series, points: points ?? 0 });
        if (!isWhole && series.steps.length > MOST_POINTS) entryOf(this.#due, key).set(runId, undefined);
      }
      this.#lines.set(key, [...lines.values()]);
    }
  }
}

interface Due {
  readonly from: number | undefined;
  readonly runIds: readonly string[];
}

interface Part extends Due {
  readonly keys: readonly string[];
}

const NO_LINES: readonly MetricRead[] = [];
const NONE: Series = { steps: new Float64Array(), values: new Float64Array() };

/** Undefined is less than all numbers. */
function leastOf(values: Iterable<number | undefined>): number | undefined {
  let least: number | undefined = Number.POSITIVE_INFINITY;
  for (const value of values) least = value === undefined || least === undefined ? undefined : Math.min(least, value);
  return least;
}

function entryOf<V>(all: Map<string, Map<string, V>>, key: string): Map<string, V> {
  let found = all.get(key);
  if (found === undefined) {
    found = new Map();
    all.set(key, found);
  }
  return found;
}
