import type { Instant } from '../../domain/instant.ts';
import type { StageKind } from '../../domain/run.ts';
import type { TaskGroups } from '../../domain/summary.ts';

/** M3: counts for summaries, grouped by dimensions. The number of statements does not grow with the rollouts. */
export interface SummaryStore {
  /** Counts rollouts. Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
  summarize(namespace: string, filter: SummaryFilter, by: readonly SummaryKey[]): Promise<SummaryRow[]>;
  /** Counts the root trajectories of runs that have no rollouts. Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
  summarizeTrajectories(
    namespace: string,
    filter: SummaryFilter,
    by: readonly SummaryKey[],
  ): Promise<TrajectorySummaryRow[]>;
}

export interface SummaryFilter {
  /** Ids. If both are empty, the whole namespace is selected. */
  readonly runs: readonly string[];
  readonly experimentId: string | undefined;
  readonly stageKinds: readonly StageKind[];
  readonly taskIds: readonly string[];
  /** Required labels of runs, and of rollouts. */
  readonly runLabels: ReadonlyMap<string, string>;
  readonly labels: ReadonlyMap<string, string>;
  /** Half-open range of create times of rollouts and trajectories. */
  readonly createTimeFrom?: Instant | undefined;
  readonly createTimeTo?: Instant | undefined;
}

/** A dimension. NUMBER is the number of a rollout in its group. A label is that of the rollout, else of its run. */
export type SummaryKey =
  | 'TASK'
  | 'RUN'
  | 'EXPERIMENT'
  | 'STAGE_KIND'
  | 'MODEL_URI'
  | 'NUMBER'
  | { readonly label: string };

/** Counts of one combination of values. */
export interface SummaryRow {
  /** In the order of the dimensions. Empty for a missing value. */
  readonly values: readonly string[];
  readonly pending: bigint;
  readonly live: bigint;
  readonly completed: bigint;
  readonly failed: bigint;
  readonly cancelled: bigint;
  readonly judged: bigint;
  readonly successes: bigint;
  /** All 0 without rewards. */
  readonly rewards: {
    readonly count: bigint;
    readonly sum: number;
    readonly min: number;
    readonly max: number;
    /** Sum of squared deviations from the mean. */
    readonly squares: number;
    readonly median: number;
  };
  readonly turns: bigint;
  /** Terminal rollouts that had an attempt: time from the claim of the latest attempt to its end. */
  readonly durations: { readonly count: bigint; readonly seconds: number };
  /** The same rollouts: time from when the rollout last became claimable to that claim. */
  readonly queueTimes: { readonly count: bigint; readonly seconds: number };
  /** Sum of the metric `tokens` over terminal rollouts that have it. */
  readonly tokens: { readonly count: bigint; readonly sum: number };
  /** M3: groups of each task, for pass@k. Rollouts without a task are not counted. */
  readonly tasks: readonly TaskGroups[];
}

/** Counts of root trajectories for one combination of values. */
export interface TrajectorySummaryRow {
  readonly values: readonly string[];
  /** Always greater than 0. */
  readonly trajectories: bigint;
  /** Statistics of reward sums that are not NaN. All 0 if there are none. */
  readonly rewards: SummaryRow['rewards'];
  readonly steps: bigint;
  /** Sums of metrics over all steps, by name. NaN is ignored, and the order is undefined. */
  readonly metricSums: ReadonlyMap<string, number>;
}
