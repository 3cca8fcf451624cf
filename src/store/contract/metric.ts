/** Series of numbers over a run (M1). Their identity is (run, stage or none, name); a point's is that and its metric_step. */
export interface MetricStore {
  /** Stores all points or none; of two with one identity the last wins, within a call too. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND. */
  logMetrics(namespace: string, runId: string, points: readonly NewMetricPoint[]): Promise<void>;

  /**
   * The series of runs, by run (in the order asked for), stage (the run's own first, then in the order of making), then name in order of bytes.
   * At most `limit`, after the given one. Errors: RUN_NOT_FOUND.
   */
  listSeries(namespace: string, filter: SeriesFilter, limit: number, after: Series | undefined): Promise<Series[]>;

  /** Returns how many points of each series lie in a range, and between which steps. Series without points there are left out. */
  measureSeries(
    namespace: string,
    series: readonly bigint[],
    range: MetricRange,
  ): Promise<ReadonlyMap<bigint, SeriesExtent>>;

  /** Returns points of one series in order of step, at most `limit`. With `numbersOnly`, NaN points are left out. */
  readPoints(
    namespace: string,
    series: bigint,
    range: MetricRange,
    limit: number,
    numbersOnly?: boolean,
  ): Promise<MetricPoints>;

  /**
   * Downsamples series to at most `maxPoints` (at least 4) points each, in order of step. NaN points are left out first. The others are cut
   * into buckets with equal numbers of points (sizes differ by at most one). Returned are the first and the last point, and of each bucket the
   * minimum and the maximum, each at the first step that has it. Series of other namespaces are left out.
   */
  downsample(
    namespace: string,
    series: readonly MeasuredSeries[],
    maxPoints: number,
  ): Promise<ReadonlyMap<bigint, MetricPoints>>;
}

export interface NewMetricPoint {
  readonly name: string;
  readonly metricStep: bigint;
  readonly value: number;
  /** Undefined: the run's own series. */
  readonly stageId: string | undefined;
}

export interface SeriesFilter {
  /** Ids of runs, each once. */
  readonly runs: readonly string[];
  /** Undefined: all. */
  readonly names: readonly string[] | undefined;
  /** An id, or only the runs' own series; undefined: all. */
  readonly stage: string | 'none' | undefined;
}

export interface Series {
  readonly key: bigint;
  readonly runId: string;
  /** Empty: the run's own. */
  readonly stageId: string;
  readonly name: string;
}

/** Half-open; undefined: no bound. */
export interface MetricRange {
  readonly from: bigint | undefined;
  readonly to: bigint | undefined;
}

export interface SeriesExtent {
  readonly points: bigint;
  /** How many of them are NaN. */
  readonly nans: bigint;
  readonly firstStep: bigint;
  readonly lastStep: bigint;
}

export interface MeasuredSeries {
  readonly key: bigint;
  readonly extent: SeriesExtent;
}

/** Lists of equal lengths, by step. */
export interface MetricPoints {
  readonly metricSteps: readonly bigint[];
  readonly values: readonly number[];
}
