import { type SeriesChange, seriesHash } from '../../../../domain/change.ts';
import type { NewMetricPoint } from '../../../../domain/metric.ts';
import type { Engine, Tx } from '../../kit/engine.ts';

export interface PointsEngine extends Engine {
  readonly points: Points;
}

/** The points of metric series, which are written and read in large numbers. */
export interface Points {
  /**
   * M1: stores points if the run and all series exist, in order of identity. Returns false if nothing was stored. Uses
   * `tx`, or a transaction of its own that is durable when the promise resolves.
   */
  upsert(batch: PointBatch, tx?: Tx): Promise<boolean>;

  /** Returns the extrema of ranges of a series, in the order of the ranges. NaN points are ignored. */
  readExtrema(series: bigint, ranges: readonly SeriesRange[]): Promise<RangeExtrema[]>;
}

/**
 * Smallest and largest number of a range, each at the first step that has it. Both are undefined if the range has no
 * numbers.
 */
export interface RangeExtrema {
  readonly lowest?: SeriesPoint;
  readonly highest?: SeriesPoint;
}

export interface SeriesPoint {
  readonly metricStep: bigint;
  readonly value: number;
}

/** Range of metric steps, both ends included. */
export interface SeriesRange {
  readonly from: bigint;
  readonly to: bigint;
}

/**
 * Distinct points of one call, in order of identity, as lists of equal length. `places` holds the index of each point's
 * series.
 */
export interface PointBatch {
  readonly namespace: string;
  readonly runId: string;
  /** In order of identity. */
  readonly series: readonly SeriesName[];
  readonly places: readonly number[];
  readonly metricSteps: readonly bigint[];
  readonly values: readonly number[];
}

export interface SeriesName {
  /** Undefined for a series of the run itself. */
  readonly stageId: string | undefined;
  readonly name: string;
}

interface Gathered extends SeriesName {
  readonly metricSteps: bigint[];
  readonly values: number[];
  /** Whether the steps are strictly ascending, so that sorting is not needed. */
  ordered: boolean;
}

/** M1: of several points with the same identity, the last one is kept. */
export function pointBatch(namespace: string, runId: string, points: readonly NewMetricPoint[]): PointBatch {
  const gathered = gather(points).sort(byIdentity);
  const batch = {
    namespace,
    runId,
    series: gathered.map(({ stageId, name }) => ({ stageId, name })),
    places: [] as number[],
    metricSteps: [] as bigint[],
    values: [] as number[],
  };
  for (const [place, series] of gathered.entries()) {
    const { metricSteps, values } = series.ordered ? series : sorted(series);
    for (const [i, step] of metricSteps.entries()) {
      batch.places.push(place);
      batch.metricSteps.push(step);
      batch.values.push(values[i]!);
    }
  }
  return batch;
}

/** Returns what a batch writes. */
export function writtenIn({ runId, series, places, metricSteps }: PointBatch): SeriesChange {
  const lowest = new Map<number, bigint>();
  let last = -1;
  for (const [i, place] of places.entries()) {
    // The first point of a series has its lowest step.
    if (place === last) continue;
    last = place;
    const [mark, step] = [seriesHash(series[place]!), metricSteps[i]!];
    const known = lowest.get(mark);
    if (known === undefined || step < known) lowest.set(mark, step);
  }
  return { runId, lowest, ofOthers: undefined };
}

/** Returns one entry per series, in no particular order. */
function gather(points: readonly NewMetricPoint[]): Gathered[] {
  const stages = new Map<string | undefined, Map<string, Gathered>>();
  for (const { stageId, name, metricStep, value } of points) {
    let series = stages.get(stageId);
    if (series === undefined) {
      series = new Map();
      stages.set(stageId, series);
    }
    let one = series.get(name);
    if (one === undefined) {
      one = { stageId, name, metricSteps: [], values: [], ordered: true };
      series.set(name, one);
    }
    const last = one.metricSteps.at(-1);
    one.ordered &&= last === undefined || last < metricStep;
    one.metricSteps.push(metricStep);
    one.values.push(value);
  }
  return [...stages.values()].flatMap((series) => [...series.values()]);
}

function sorted({ metricSteps, values }: Gathered): Pick<Gathered, 'metricSteps' | 'values'> {
  const last = new Map(metricSteps.map((step, i) => [step, values[i]!]));
  const entries = [...last].sort(([a], [b]) => (a < b ? -1 : 1));
  return { metricSteps: entries.map(([step]) => step), values: entries.map(([, value]) => value) };
}

function byIdentity(a: SeriesName, b: SeriesName): number {
  const [one = '', other = ''] = [a.stageId, b.stageId];
  if (one !== other) return one < other ? -1 : 1;
  return a.name < b.name ? -1 : 1;
}

/**
 * Divides the steps from `first` to `last` into at most `count` ranges of equal length. The last one may be shorter.
 */
export function splitRange(first: bigint, last: bigint, count: number): SeriesRange[] {
  const span = last - first + 1n;
  const length = (span + BigInt(count) - 1n) / BigInt(count);
  const ranges: SeriesRange[] = [];
  for (let from = first; from <= last; from += length) {
    const to = from + length - 1n;
    ranges.push({ from, to: to < last ? to : last });
  }
  return ranges;
}
