import type { Instant } from '../../domain/instant.ts';
import type { StageKind } from '../../domain/run.ts';
import type { TaskGroups } from '../../domain/summary.ts';

/** What summaries (M3) are made of: rollouts counted by what they are grouped by, in a number of statements that does not grow with them. */
export interface SummaryStore {
  /** Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
  summarize(namespace: string, filter: SummaryFilter, by: readonly SummaryKey[]): Promise<SummaryRow[]>;
  /** Counts the root trajectories of runs that have no rollouts. Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
  summarizeTrajectories(
    namespace: string,
    filter: SummaryFilter,
    by: readonly SummaryKey[],
  ): Promise<TrajectorySummaryRow[]>;
}

export interface SummaryFilter {
  /** Ids; both empty: all of the namespace. */
  readonly runs: readonly string[];
  readonly experimentId: string | undefined;
  readonly stageKinds: readonly StageKind[];
  readonly taskIds: readonly string[];
  /** Labels of runs, and of rollouts. */
  readonly runLabels: ReadonlyMap<string, string>;
  readonly labels: ReadonlyMap<string, string>;
  /** Rollouts and trajectories created at or after, and before, these times. */
  readonly createTimeFrom?: Instant | undefined;
  readonly createTimeTo?: Instant | undefined;
}

/** A dimension: the task, the run, the experiment, the stage's kind, the model's URI, a label of the rollout (else of its run), or its number among its siblings. */
export type SummaryKey =
  | 'TASK'
  | 'RUN'
  | 'EXPERIMENT'
  | 'STAGE_KIND'
  | 'MODEL_URI'
  | 'NUMBER'
  | { readonly label: string };

/** One combination of values. */
export interface SummaryRow {
  /** In the order of the dimensions; empty: has none. */
  readonly values: readonly string[];
  readonly pending: bigint;
  readonly live: bigint;
  readonly completed: bigint;
  readonly failed: bigint;
  readonly cancelled: bigint;
  readonly judged: bigint;
  readonly successes: bigint;
  /** All 0 where there are none. */
  readonly rewards: {
    readonly count: bigint;
    readonly sum: number;
    readonly min: number;
    readonly max: number;
    /** Sum of squares around the mean. */
    readonly squares: number;
    readonly median: number;
  };
  readonly turns: bigint;
  /** Of terminal rollouts that had an attempt: from the claim of the last one to its end. */
  readonly durations: { readonly count: bigint; readonly seconds: number };
  /** Of the same: from when the rollout last became claimable to that claim. */
  readonly queueTimes: { readonly count: bigint; readonly seconds: number };
  /** Sum of the metric `tokens` over terminal rollouts that have it. */
  readonly tokens: { readonly count: bigint; readonly sum: number };
  /** What pass@k is made of: the groups of each task (M3). Rollouts without a task are in none. */
  readonly tasks: readonly TaskGroups[];
}

/** One combination of values, of root trajectories. */
export interface TrajectorySummaryRow {
  readonly values: readonly string[];
  /** More than 0. */
  readonly trajectories: bigint;
  /** Of their reward sums that are not NaN. All 0 if there are none. */
  readonly rewards: SummaryRow['rewards'];
  readonly steps: bigint;
  /** By name, the sum of a metric over their steps; NaN is left out. In no order. */
  readonly metricSums: ReadonlyMap<string, number>;
}
