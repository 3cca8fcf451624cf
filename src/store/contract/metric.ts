import type {
  MeasuredSeries,
  MetricPoints,
  MetricRange,
  NewMetricPoint,
  Series,
  SeriesExtent,
  SeriesFilter,
} from '../../domain/metric.ts';

/**
 * M1: metric series of a run. A series is identified by run, stage (or none) and name; a point by its series and
 * metric_step.
 */
export interface MetricStore {
  /**
   * Stores all points or none. Of several points with one identity, also within a call, the last one is kept. Errors:
   * RUN_NOT_FOUND, STAGE_NOT_FOUND.
   */
  logMetrics(namespace: string, runId: string, points: readonly NewMetricPoint[]): Promise<void>;

  /**
   * Lists at most `limit` series after the given one. Order: runs as requested, then the series of the run itself, then
   * stages by creation. Names are in order of bytes. Errors: RUN_NOT_FOUND.
   */
  listSeries(namespace: string, filter: SeriesFilter, limit: number, after: Series | undefined): Promise<Series[]>;

  /**
   * Counts the points of each series in a range, and returns their first and last step, and the last value. Series
   * without points in the range are omitted.
   */
  measureSeries(
    namespace: string,
    series: readonly bigint[],
    range: MetricRange,
  ): Promise<ReadonlyMap<bigint, SeriesExtent>>;

  /** Returns at most `limit` points of a series, in order of step. `numbersOnly` omits NaN points. */
  readPoints(
    namespace: string,
    series: bigint,
    range: MetricRange,
    limit: number,
    numbersOnly?: boolean,
  ): Promise<MetricPoints>;

  /**
   * Downsamples series to at most `maxPoints` (at least 4) points each, in order of step. NaN points are ignored.
   * The other points are divided into buckets with equal numbers of points (sizes differ by at most one). The result
   * has the first and the last point, and the minimum and the maximum of each bucket, each at the first step that has
   * it. Series of other namespaces are omitted.
   */
  downsample(
    namespace: string,
    series: readonly MeasuredSeries[],
    maxPoints: number,
  ): Promise<ReadonlyMap<bigint, MetricPoints>>;
}
