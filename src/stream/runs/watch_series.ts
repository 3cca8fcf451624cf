import { seriesHash } from '../../domain/change.ts';
import type { MetricRange, Series, SeriesExtent } from '../../domain/metric.ts';
import { tupleKey } from '../../domain/tuple_key.ts';
import type { Store } from '../../store/contract/store.ts';
import { rowParts } from '../row_bytes.ts';
import type { WrittenSeries } from './series_hints.ts';

/** A metric series, as a watcher sends it. */
export interface SeriesShown {
  /** Empty for a series of the run itself. */
  readonly stageId: string;
  readonly name: string;
  readonly points: bigint;
  readonly lastStep: bigint;
  readonly lastValue: number;
  /** Lowest step that may have changed since the series was last sent. */
  readonly changedFrom: bigint;
}

/** Series that one statement lists and measures. */
const LISTED = 200;
/** Series that a sweep measures at each poll. */
const SWEPT = 50;
/** Later series of a run are not watched. */
const MOST_SERIES = 10_000;
const LAST_STEP = 2n ** 63n - 1n;

interface Known {
  readonly series: Series;
  /** Number of points before `from`. So points that are logged later cost only a count of these. */
  before: bigint;
  /** Undefined: no point has been counted. */
  from: bigint | undefined;
  lastStep: bigint | undefined;
}

/** A series to measure from a step on. Undefined: from its first step. */
interface Due {
  readonly known: Known;
  readonly lowest: bigint | undefined;
}

/**
 * What a watcher has sent about the metric series of a run. Hints say which steps were written, so a look counts only
 * points from there on. A sweep, a few series at each poll, finds points after the last one whose hints were lost.
 */
export class KnownSeries {
  readonly #store: Store;
  readonly #namespace: string;
  readonly #runId: string;
  readonly #known = new Map<bigint, Known>();
  readonly #marks = new Map<number, Known[]>();
  /** Where the sweep continues. */
  #swept: Series | undefined;

  constructor(store: Store, namespace: string, runId: string) {
    this.#store = store;
    this.#namespace = namespace;
    this.#runId = runId;
  }

  /** Reads all series for a snapshot, later those that were written. Errors: RUN_NOT_FOUND. */
  async *look(written: WrittenSeries, isSnapshot: boolean): AsyncGenerator<SeriesShown[], void, undefined> {
    const isNew = written.ofOthers !== undefined || [...written.lowest.keys()].some((mark) => !this.#marks.has(mark));
    const listed = new Set<Known>();
    if (isSnapshot || written.any || isNew) {
      for await (const page of this.#list()) {
        for (const known of page) listed.add(known);
        yield* this.#measure(page.map((known) => ({ known, lowest: undefined })));
      }
    }
    yield* this.#measure(this.#writtenIn(written).filter(({ known }) => !listed.has(known)));
    if (written.isPoll && !isSnapshot) yield* this.#sweep();
  }

  /** Lists all series. Yields those that the watcher did not know, a page at a time. */
  async *#list(): AsyncGenerator<Known[], void, undefined> {
    let after: Series | undefined;
    do {
      const page = await this.#page(LISTED, after);
      yield page.flatMap((series) => this.#take(series));
      after = page.length < LISTED ? undefined : page.at(-1);
    } while (after !== undefined && this.#known.size < MOST_SERIES);
  }

  #page(limit: number, after: Series | undefined): Promise<Series[]> {
    const filter = { runs: [this.#runId], names: undefined, stage: undefined };
    return this.#store.listSeries(this.#namespace, filter, limit, after);
  }

  /** Returns the series if the watcher did not know it. */
  #take(series: Series): Known[] {
    if (this.#known.has(series.key) || this.#known.size >= MOST_SERIES) return [];
    const known: Known = { series, before: 0n, from: undefined, lastStep: undefined };
    this.#known.set(series.key, known);
    const mark = markOf(series);
    this.#marks.set(mark, [...(this.#marks.get(mark) ?? []), known]);
    return [known];
  }

  #writtenIn({ lowest, ofOthers, any }: WrittenSeries): Due[] {
    if (any) return [...this.#known.values()].map((known) => ({ known, lowest: undefined }));
    const due: Due[] = [];
    for (const [mark, step] of lowest)
      for (const known of this.#marks.get(mark) ?? []) due.push({ known, lowest: step });
    if (ofOthers === undefined) return due;
    for (const known of this.#known.values()) {
      if (!lowest.has(markOf(known.series))) due.push({ known, lowest: ofOthers });
    }
    return due;
  }

  async *#sweep(): AsyncGenerator<SeriesShown[], void, undefined> {
    const page = await this.#page(SWEPT, this.#swept);
    this.#swept = page.length < SWEPT ? undefined : page.at(-1);
    for (const series of page) this.#take(series);
    const known = page.flatMap(({ key }) => this.#known.get(key) ?? []);
    const due = known.filter(({ lastStep }) => lastStep !== LAST_STEP);
    yield* this.#measure(
      due.map((each) => ({ known: each, lowest: each.lastStep === undefined ? undefined : each.lastStep + 1n })),
    );
  }

  /** Series that are counted over the same steps share their statements. Mostly all series of a run do. */
  async *#measure(due: readonly Due[]): AsyncGenerator<SeriesShown[], void, undefined> {
    const groups = Map.groupBy(due, ({ known, lowest }) => tupleKey(known.from ?? '', lowest ?? ''));
    for (const group of groups.values()) {
      for (let at = 0; at < group.length; at += LISTED) {
        yield* rowParts(await this.#measureAlike(group.slice(at, at + LISTED)));
      }
    }
  }

  /** Measures series whose counts begin at the same step, and which are due from the same step on. */
  async #measureAlike(group: readonly Due[]): Promise<SeriesShown[]> {
    const { known: first, lowest } = group[0]!;
    const after = await this.#extents(group, { from: lowest, to: undefined });
    const grown = group.filter(({ known }) => after.has(known.series.key));
    // Points before the counted ones were written: counts all again.
    const isEarlier = lowest === undefined || first.from === undefined || lowest < first.from;
    const between = { from: isEarlier ? undefined : first.from, to: lowest };
    const isCounted = lowest === undefined || lowest === between.from;
    const before = isCounted ? new Map<bigint, SeriesExtent>() : await this.#extents(grown, between);
    return grown.map(({ known }) => {
      const { points, firstStep, lastStep, lastValue } = after.get(known.series.key)!;
      known.before = (isEarlier ? 0n : known.before) + (before.get(known.series.key)?.points ?? 0n);
      const total = known.before + points;
      // A series that is counted as a whole mostly grows at its end.
      if (lowest === undefined) known.before = total - 1n;
      known.from = lowest === undefined ? lastStep : firstStep;
      known.lastStep = lastStep;
      const { stageId, name } = known.series;
      return { stageId, name, points: total, lastStep, lastValue, changedFrom: firstStep };
    });
  }

  async #extents(group: readonly Due[], range: MetricRange): Promise<ReadonlyMap<bigint, SeriesExtent>> {
    if (group.length === 0) return new Map();
    const keys = group.map(({ known }) => known.series.key);
    return this.#store.measureSeries(this.#namespace, keys, range);
  }
}

/** A series of the run itself has an empty id of a stage. Points that were logged have none. */
function markOf({ stageId, name }: Series): number {
  return seriesHash({ stageId: stageId || undefined, name });
}
