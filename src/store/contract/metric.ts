/** Series of numbers over a run (M1). Their identity is (run, stage or none, name); a point's is that and its metric_step. */
export interface MetricStore {
  /** Stores all points or none; of two with one identity the last wins, within a call too. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND. */
  logMetrics(namespace: string, runId: string, points: readonly NewMetricPoint[]): Promise<void>;

  /**
   * The series of runs, by run (in the order asked for), stage (the run's own first, then in the order of making), then name in order of bytes.
   * At most `limit`, after the given one. Errors: RUN_NOT_FOUND.
   */
  listSeries(namespace: string, filter: SeriesFilter, limit: number, after: Series | undefined): Promise<Series[]>;

  /**
   * How many points of each series lie in a range, and between which steps. Series without points there are left out. With `upTo`, counting ends at
   * one more than that: what is left of a long series is not looked at.
   */
  measureSeries(
    namespace: string,
    series: readonly bigint[],
    range: MetricRange,
    upTo?: number,
  ): Promise<ReadonlyMap<bigint, SeriesExtent>>;

  /** Points of one series by step, at most `limit`. */
  readPoints(namespace: string, series: bigint, range: MetricRange, limit: number): Promise<MetricPoints>;

  /**
   * Points of series, each cut into `stretches` of equal length between its first and last step of the range: of each stretch the smallest
   * and the largest value, at the first step that has it, by step. NaN is left out, and counted.
   */
  readExtrema(
    namespace: string,
    series: readonly { readonly key: bigint; readonly extent: SeriesExtent }[],
    stretches: number,
  ): Promise<ReadonlyMap<bigint, MetricExtrema>>;
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

export interface MetricExtrema extends MetricPoints {
  /** How many points lie between the first and the last step, and how many of them are NaN. */
  readonly points: bigint;
  readonly nans: bigint;
}

/** Lists of equal lengths, by step. */
export interface MetricPoints {
  readonly metricSteps: readonly bigint[];
  readonly values: readonly number[];
}
