import type { TrajectoryRef } from '../../domain/trajectory.ts';

export interface MergeStore {
  /**
   * Merges the rows in which steps were appended into few compressed rows. What is read does not change. One call
   * replaces about 1 MiB at most, in one transaction. Several instances may merge the same trajectories. Returns the
   * requests that are not finished; a trajectory that does not exist is finished.
   */
  mergeSteps(requests: readonly MergeRequest[]): Promise<MergeRequest[]>;

  /**
   * Looks at the next trajectories in order of key. Returns those that have steps which were not merged, and have not
   * grown for `idleSeconds`. `next` is undefined after the last trajectory.
   */
  findUnmerged(
    after: TrajectoryRef | undefined,
    limit: number,
    idleSeconds: number,
  ): Promise<{ readonly found: TrajectoryRef[]; readonly next: TrajectoryRef | undefined }>;
}

export interface MergeRequest {
  readonly ref: TrajectoryRef;
  /** Also merges the last rows, though they do not fill a row: for a trajectory that does not grow. */
  readonly rest: boolean;
  /** How many steps wait to be merged, if that is known. A request that is not finished has those that are left. */
  readonly steps?: number;
}
