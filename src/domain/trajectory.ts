import type { Instant } from './instant.ts';
import type { TrajectoryStatus } from './lifecycle.ts';

/**
 * Where a trajectory's rows are: the row keys of its tree's root and of itself. Keys are given by the store and never used again (B3), so a
 * reference outlives a deletion without ever meaning another trajectory.
 */
export interface TrajectoryRef {
  readonly tree: bigint;
  readonly key: bigint;
}

export interface Trajectory {
  readonly ref: TrajectoryRef;
  readonly id: string;
  /** The row's own UUID, never used again (B3). */
  readonly uid: string;
  readonly treeId: string;
  /** The owner of the branch point and the last shared step; undefined for a root. */
  readonly parent: { readonly key: bigint; readonly id: string; readonly branchPoint: bigint } | undefined;
  readonly name: string;
  readonly taskId: string;
  /** Ids of the run and the experiment that it belongs to; empty: none. */
  readonly runId: string;
  readonly experimentId: string;
  readonly labels: ReadonlyMap<string, string>;
  readonly metadataJson: string;
  readonly metrics: ReadonlyMap<string, number>;
  readonly status: TrajectoryStatus;
  readonly statusMessage: string;
  /** Empty if no writer was ever granted; then the epoch is 0. */
  readonly writerId: string;
  readonly writerEpoch: bigint;
  readonly nextStepNumber: bigint;
  readonly rewardSum: number;
  /** Sum of the rewards of its own steps, added in order. Undefined: none of them has a reward that counts (W11). */
  readonly branchRewardSum: number | undefined;
  readonly createTime: Instant;
  readonly updateTime: Instant;
  readonly sealTime: Instant | undefined;
  /** Deleted, but kept as far as its branches need it (B2). */
  readonly hidden: boolean;
}

/** The first step number that is a trajectory's own. */
export function ownBegin(trajectory: Pick<Trajectory, 'parent'>): bigint {
  return trajectory.parent === undefined ? 0n : trajectory.parent.branchPoint + 1n;
}
