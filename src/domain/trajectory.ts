import type { Instant } from './instant.ts';
import type { TrajectoryStatus } from './lifecycle.ts';

/**
 * The row keys of a trajectory and of its tree's root. The store never uses a key again (B3), so a reference never
 * means another trajectory, even after a deletion.
 */
export interface TrajectoryRef {
  readonly tree: bigint;
  readonly key: bigint;
}

/** Fields of a trajectory that its creation sets and updates change. */
export interface TrajectorySettings {
  readonly name: string;
  readonly labels: ReadonlyMap<string, string>;
  /** JSON text; empty for none. */
  readonly metadataJson: string;
}

export interface Trajectory extends TrajectorySettings {
  readonly ref: TrajectoryRef;
  readonly id: string;
  /** UUID of the row, never used again (B3). */
  readonly uid: string;
  readonly treeId: string;
  /** The owner of the branch point, and the last shared step. Undefined for a root. */
  readonly parent: { readonly key: bigint; readonly id: string; readonly branchPoint: bigint } | undefined;
  readonly taskId: string;
  /** Ids of the run and the experiment of the trajectory. Empty: none. */
  readonly runId: string;
  readonly experimentId: string;
  readonly metrics: ReadonlyMap<string, number>;
  /** Keys of step metrics that lists can sort own steps by. Never changes. */
  readonly scoredMetrics: readonly string[];
  readonly status: TrajectoryStatus;
  readonly statusMessage: string;
  /** Empty if no writer was ever granted. The epoch is 0 then. */
  readonly writerId: string;
  readonly writerEpoch: bigint;
  readonly nextStepNumber: bigint;
  readonly rewardSum: number;
  /** Sum of the rewards of its own steps, added in order. Undefined if none of them has a reward that counts (W11). */
  readonly branchRewardSum: number | undefined;
  readonly createTime: Instant;
  readonly updateTime: Instant;
  readonly sealTime: Instant | undefined;
  /** Deleted, but kept as far as its branches need it (B2). */
  readonly hidden: boolean;
}

/** Returns the number of the first own step of a trajectory. */
export function ownBegin(trajectory: Pick<Trajectory, 'parent'>): bigint {
  return trajectory.parent === undefined ? 0n : trajectory.parent.branchPoint + 1n;
}
