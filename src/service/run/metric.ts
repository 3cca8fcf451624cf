import { create } from '@bufbuild/protobuf';
import { type MetricSeries, MetricSeriesSchema } from '../../../gen/es/anabranch/v1/run_pb.js';
import {
  type ReadMetricsRequest,
  type ReadMetricsResponse,
  ReadMetricsResponseSchema,
  type RunService,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import type { MetricPoints, MetricRange, Series, SeriesExtent, SeriesFilter } from '../../domain/metric.ts';
import { requireDistinct } from '../convert/values.ts';
import type { Call, SomeMethods } from '../method.ts';

/** A series, and the extent of all of its points. */
interface Measured {
  readonly series: Series;
  readonly extent: SeriesExtent;
}

/** Some points of a series. */
interface SeriesRead extends Measured {
  readonly points: MetricPoints;
}

/** Series read by one statement. */
const SERIES = 200;
/** Maximum number of downsampled points in memory. A series with more of them is read alone. */
const POINTS = 16_384;
/** Points read by one statement, so that their conversion does not block the serving thread for long. */
const PAGE_POINTS = 4096;
/** Maximum size of a point: a varint and a double. */
const POINT_BYTES = 18;
const MESSAGE_BYTES = 512 * 1024;

export const metricMethods = {
  /** Logs all points or none (M1). */
  async logMetrics({ runId, points }, { app, caller }) {
    const logged = points.map(({ key, metricStep, value, stageId }) => {
      return { name: key, metricStep, value, stageId: stageId || undefined };
    });
    await app.store.logMetrics(caller.namespace, runId, logged);
    return {};
  },

  readMetrics: { messages: readMetrics, isLarge: true },
} satisfies SomeMethods<typeof RunService>;

/**
 * Returns series by run (in the order of the request), stage and key, in full or downsampled to `max_points` numbers
 * (M1). Errors: RUN_NOT_FOUND, also if a run is deleted meanwhile, so that no incomplete response succeeds.
 */
async function* readMetrics(request: ReadMetricsRequest, call: Call): AsyncGenerator<ReadMetricsResponse> {
  const filter = toFilter(request);
  let message = create(ReadMetricsResponseSchema);
  let bytes = 0;
  for await (const piece of readPieces(call, filter, request, rangeOf(request))) {
    const size = pieceBytes(piece);
    if (message.series.length > 0 && bytes + size > MESSAGE_BYTES) {
      call.app.drain.throwIfBegun();
      yield message;
      message = create(ReadMetricsResponseSchema);
      bytes = 0;
    }
    message.series.push(toMessage(piece));
    bytes += size;
  }
  if (message.series.length > 0) yield message;
}

function toMessage({ series, extent, points }: SeriesRead): MetricSeries {
  const wire = create(MetricSeriesSchema);
  wire.runId = series.runId;
  wire.stageId = series.stageId;
  wire.key = series.name;
  // The store returns new lists, which nothing else changes.
  wire.metricSteps = points.metricSteps as bigint[];
  wire.values = points.values as number[];
  wire.pointCount = extent.points;
  wire.nanCount = extent.nans;
  return wire;
}

function toFilter({ runIds, keys, stageId, runLevelOnly }: ReadMetricsRequest): SeriesFilter {
  requireDistinct(runIds, (id) => [id], 'run_ids');
  if (stageId !== '' && runLevelOnly) {
    throw invalidField(
      'run_level_only',
      'must be false when stage_id is set: a series belongs to a stage or to the run itself',
    );
  }
  return {
    runs: runIds,
    names: keys.length === 0 ? undefined : [...new Set(keys)],
    stage: stageId !== '' ? stageId : runLevelOnly ? 'none' : undefined,
  };
}

function rangeOf({ startMetricStep: from, endMetricStep: to }: ReadMetricsRequest): MetricRange {
  if (from === undefined || to === undefined || from <= to) return { from, to };
  throw invalidField('end_metric_step', `must be at least start_metric_step, which is ${from}, not ${to}`);
}

async function* readPieces(
  call: Call,
  filter: SeriesFilter,
  { maxPoints }: ReadMetricsRequest,
  range: MetricRange,
): AsyncGenerator<SeriesRead, void, undefined> {
  const { app, caller } = call;
  let after: Series | undefined;
  while (!call.signal.aborted) {
    const page = await app.store.listSeries(caller.namespace, filter, SERIES, after);
    // The last read finds no series. It fails if a run was deleted meanwhile.
    if (page.length === 0) return;
    after = page.at(-1);
    const keys = page.map(({ key }) => key);
    const extents = await app.store.measureSeries(caller.namespace, keys, range);
    const measured = page.flatMap((series) => {
      const extent = extents.get(series.key);
      return extent === undefined ? [] : [{ series, extent }];
    });
    for (let at = 0; at < measured.length; at += seriesAtOnce(maxPoints)) {
      yield* readSome(call, measured.slice(at, at + seriesAtOnce(maxPoints)), range, maxPoints);
    }
  }
}

function seriesAtOnce(maxPoints: number): number {
  return Math.max(1, Math.floor(POINTS / Math.max(1, maxPoints)));
}

async function* readSome(
  call: Call,
  some: readonly Measured[],
  range: MetricRange,
  maxPoints: number,
): AsyncGenerator<SeriesRead, void, undefined> {
  const long = some.filter(({ extent }) => maxPoints > 0 && extent.points - extent.nans > BigInt(maxPoints));
  const extents = long.map(({ series: { key }, extent }) => ({ key, extent }));
  const downsampled: ReadonlyMap<bigint, MetricPoints> =
    long.length === 0 ? new Map() : await call.app.store.downsample(call.caller.namespace, extents, maxPoints);
  for (const measured of some) {
    if (long.includes(measured)) yield { ...measured, points: downsampled.get(measured.series.key) ?? NONE };
    else if (maxPoints > 0 && measured.extent.nans === measured.extent.points) yield { ...measured, points: NONE };
    else yield* readWhole(call, measured, { range, numbersOnly: maxPoints > 0 });
  }
}

const NONE: MetricPoints = { metricSteps: [], values: [] };

/** Returns all points up to the last one in the extent, so that the read ends while a client continues to log. */
async function* readWhole(
  call: Call,
  { series, extent }: Measured,
  { range, numbersOnly }: { readonly range: MetricRange; readonly numbersOnly: boolean },
): AsyncGenerator<SeriesRead, void, undefined> {
  const to = extent.lastStep === LAST_STEP ? range.to : extent.lastStep + 1n;
  let from: bigint | undefined = extent.firstStep;
  while (from !== undefined) {
    const { namespace } = call.caller;
    const points = await call.app.store.readPoints(namespace, series.key, { from, to }, PAGE_POINTS, numbersOnly);
    if (points.values.length > 0) yield { series, extent, points };
    const last = points.metricSteps.at(-1);
    from = points.values.length < PAGE_POINTS || last === undefined || last >= extent.lastStep ? undefined : last + 1n;
  }
}

const LAST_STEP = 2n ** 63n - 1n;

function pieceBytes({ series, points }: SeriesRead): number {
  return 160 + Buffer.byteLength(series.name) + points.values.length * POINT_BYTES;
}
