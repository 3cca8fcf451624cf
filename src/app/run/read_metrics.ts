import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import type {
  MeasuredSeries,
  MetricPoints,
  MetricRange,
  Series,
  SeriesExtent,
  SeriesFilter,
} from '../../store/contract/metric.ts';
import { serverDraining } from '../../stream/drain.ts';
import type { App } from '../app.ts';

export interface ReadMetricsArgs {
  /** 1 to 100, each once. */
  readonly runIds: readonly string[];
  /** Empty: all. */
  readonly keys: readonly string[];
  /** Empty: of the runs and of all their stages. */
  readonly stageId: string;
  readonly runLevelOnly: boolean;
  readonly range: MetricRange;
  /** Maximum number of points per series, at least 4. 0: all points as they were logged. */
  readonly maxPoints: number;
  /** Aborted when the caller is gone. */
  readonly signal: AbortSignal;
}

/** A stretch of a series, and what there is of it in all. */
export interface SeriesRead {
  readonly series: Series;
  readonly extent: SeriesExtent;
  readonly points: MetricPoints;
}

/** Series looked up at a time. */
const SERIES = 200;
/** Points that stand in memory at a time. */
const POINTS = 16_384;
/** Points of one statement: converting them must not take the serving thread for long. */
const PAGE_POINTS = 4096;
/** What a point takes at most: a varint and a double. */
const POINT_BYTES = 18;
const MESSAGE_BYTES = 512 * 1024;

/**
 * Returns series by run (in the order of the request), stage, then key: whole, or downsampled to `maxPoints` numbers (M1).
 * Each message of pieces fits into 1 MiB. Errors: RUN_NOT_FOUND (also where one goes meanwhile: a short answer is never a success), SERVER_DRAINING.
 */
export async function* readMetrics(
  app: App,
  caller: Caller,
  args: ReadMetricsArgs,
): AsyncGenerator<readonly SeriesRead[], void, undefined> {
  const filter = checkFilter(args);
  requireRange(args.range);
  let message: SeriesRead[] = [];
  let bytes = 0;
  for await (const piece of readPieces(app, caller, filter, args)) {
    const size = pieceBytes(piece);
    if (message.length > 0 && bytes + size > MESSAGE_BYTES) {
      if (app.drain.begun) throw serverDraining();
      yield message;
      message = [];
      bytes = 0;
    }
    message.push(piece);
    bytes += size;
  }
  if (message.length > 0) yield message;
}

function checkFilter({ runIds, keys, stageId, runLevelOnly }: ReadMetricsArgs): SeriesFilter {
  if (new Set(runIds).size < runIds.length) throw invalidField('run_ids', 'must name each run once');
  if (stageId !== '' && runLevelOnly) {
    throw invalidField(
      'run_level_only',
      'must be false when stage_id is set: series are of a stage or of the run itself',
    );
  }
  return {
    runs: runIds,
    names: keys.length === 0 ? undefined : [...new Set(keys)],
    stage: stageId !== '' ? stageId : runLevelOnly ? 'none' : undefined,
  };
}

function requireRange({ from, to }: MetricRange): void {
  if (from === undefined || to === undefined || from <= to) return;
  throw invalidField('end_metric_step', `must be at least start_metric_step, which is ${from}, not ${to}`);
}

async function* readPieces(
  app: App,
  caller: Caller,
  filter: SeriesFilter,
  args: ReadMetricsArgs,
): AsyncGenerator<SeriesRead, void, undefined> {
  let after: Series | undefined;
  while (!args.signal.aborted) {
    const page = await app.store.listSeries(caller.namespace, filter, SERIES, after);
    // The last look finds nothing more, and that all runs are still there.
    if (page.length === 0) return;
    after = page.at(-1);
    const extents = await app.store.measureSeries(
      caller.namespace,
      page.map(({ key }) => key),
      args.range,
    );
    const measured = page.flatMap((series) => {
      const extent = extents.get(series.key);
      return extent === undefined ? [] : [{ series, extent }];
    });
    for (let at = 0; at < measured.length; at += seriesAtOnce(args.maxPoints)) {
      yield* readSome(app, caller, measured.slice(at, at + seriesAtOnce(args.maxPoints)), args);
    }
  }
}

interface Measured {
  readonly series: Series;
  readonly extent: SeriesExtent;
}

function seriesAtOnce(maxPoints: number): number {
  return Math.max(1, Math.floor(POINTS / Math.max(1, maxPoints)));
}

async function* readSome(
  app: App,
  caller: Caller,
  some: readonly Measured[],
  { range, maxPoints }: ReadMetricsArgs,
): AsyncGenerator<SeriesRead, void, undefined> {
  const long = some.filter(({ extent }) => maxPoints > 0 && extent.points - extent.nans > BigInt(maxPoints));
  const downsampled: ReadonlyMap<bigint, MetricPoints> =
    long.length === 0 ? new Map() : await app.store.downsample(caller.namespace, long.map(toMeasured), maxPoints);
  for (const measured of some) {
    if (long.includes(measured)) yield { ...measured, points: downsampled.get(measured.series.key) ?? NONE };
    else if (maxPoints > 0 && measured.extent.nans === measured.extent.points) yield { ...measured, points: NONE };
    else yield* readWhole(app, caller, measured, { range, numbersOnly: maxPoints > 0 });
  }
}

function toMeasured({ series, extent }: Measured): MeasuredSeries {
  return { key: series.key, extent };
}

const NONE: MetricPoints = { metricSteps: [], values: [] };

/** Returns all points up to the last one that was measured, so that the read ends although a client continues to log. */
async function* readWhole(
  app: App,
  caller: Caller,
  { series, extent }: Measured,
  { range, numbersOnly }: { readonly range: MetricRange; readonly numbersOnly: boolean },
): AsyncGenerator<SeriesRead, void, undefined> {
  const to = extent.lastStep === LAST_STEP ? range.to : extent.lastStep + 1n;
  let from: bigint | undefined = extent.firstStep;
  while (from !== undefined) {
    const points = await app.store.readPoints(caller.namespace, series.key, { from, to }, PAGE_POINTS, numbersOnly);
    if (points.values.length > 0) yield { series, extent, points };
    const last = points.metricSteps.at(-1);
    from = points.values.length < PAGE_POINTS || last === undefined || last >= extent.lastStep ? undefined : last + 1n;
  }
}

const LAST_STEP = 2n ** 63n - 1n;

function pieceBytes({ series, points }: SeriesRead): number {
  return 160 + Buffer.byteLength(series.name) + points.values.length * POINT_BYTES;
}
