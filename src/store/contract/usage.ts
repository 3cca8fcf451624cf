import type { TrajectoryRef } from '../../domain/trajectory.ts';
import type { StorageUsage, UsageProgress } from '../../domain/usage.ts';

export interface UsageStore {
  /**
   * S12: measures the rows that a trajectory refers to, inherited ones included, those of all trajectories of a run
   * (by its key), or all rows of the namespace. Bounded statements; changes meanwhile are counted or not.
   */
  measureUsage(
    namespace: string,
    of: { readonly trajectory: TrajectoryRef } | { readonly run: bigint } | 'namespace',
  ): AsyncGenerator<UsageProgress, StorageUsage, undefined>;
}
