/** Points and series of metrics (M1). */
export interface NewMetricPoint {
  readonly name: string;
  readonly metricStep: bigint;
  readonly value: number;
  /** Undefined for a series of the run itself. */
  readonly stageId: string | undefined;
}

export interface SeriesFilter {
  /** Distinct ids of runs. */
  readonly runs: readonly string[];
  /** Undefined for all names. */
  readonly names: readonly string[] | undefined;
  /** An id, or `none` for series of the run itself; undefined for all. */
  readonly stage: string | 'none' | undefined;
}

export interface Series {
  readonly key: bigint;
  readonly runId: string;
  /** Empty for a series of the run itself. */
  readonly stageId: string;
  readonly name: string;
}

/** Half-open range: [from, to). An undefined bound does not apply. */
export interface MetricRange {
  readonly from: bigint | undefined;
  readonly to: bigint | undefined;
}

/** The points of a metric series in a range, NaN included. */
export interface SeriesExtent {
  readonly points: bigint;
  /** Number of these points that are NaN. */
  readonly nans: bigint;
  readonly firstStep: bigint;
  readonly lastStep: bigint;
  /** Value at the last step. */
  readonly lastValue: number;
}

export interface MeasuredSeries {
  readonly key: bigint;
  readonly extent: SeriesExtent;
}

/** Lists of equal length, in order of step. */
export interface MetricPoints {
  readonly metricSteps: readonly bigint[];
  readonly values: readonly number[];
}
