import type { Instant } from '../../domain/instant.ts';
import type { StageKind } from '../../domain/run.ts';
import type { SummaryKey, SummaryRow, TrajectorySummaryRow } from '../../domain/summary.ts';

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
