import type { TrajectoryStatus } from '../../../domain/lifecycle.ts';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { LockedHead } from '../engine.ts';
import { rowUpdate, type UpdateOf } from '../tables/table.ts';
import { TRAJECTORIES } from '../tables/trajectories.ts';
import { isSet, readOptionalReal, readReal } from '../values.ts';

/** Columns that an engine's `lockHeads` selects. */
export interface HeadColumns {
  tree: bigint;
  key: bigint;
  namespace: string;
  uid: string;
  hidden: boolean | bigint;
  branch_point: bigint | null;
  status: string;
  status_message: string;
  seal_time: string | null;
  writer_id: string;
  writer_epoch: bigint;
  next_step_number: bigint;
  reward_sum: number | string;
  branch_reward_sum: number | string | null;
  byte_sum: bigint;
  now: string;
}

export function readHead(row: HeadColumns): LockedHead {
  return {
    tree: row.tree,
    key: row.key,
    namespace: row.namespace,
    uid: row.uid,
    hidden: isSet(row.hidden),
    ownBegin: row.branch_point === null ? 0n : row.branch_point + 1n,
    status: row.status as TrajectoryStatus,
    statusMessage: row.status_message,
    sealTime: row.seal_time,
    writerId: row.writer_id,
    writerEpoch: row.writer_epoch,
    nextStepNumber: row.next_step_number,
    rewardSum: readReal(row.reward_sum),
    branchRewardSum: readOptionalReal(row.branch_reward_sum),
    byteSum: row.byte_sum,
  };
}

/** What an append or a seal changes. */
export const HEAD_UPDATE = rowUpdate(
  TRAJECTORIES,
  ['tree', 'key'],
  [
    'next_step_number',
    'reward_sum',
    'branch_reward_sum',
    'byte_sum',
    'status',
    'status_message',
    'update_time',
    'seal_time',
  ],
);

export type HeadRow = UpdateOf<typeof HEAD_UPDATE>;

/** Every transaction locks heads in this order, so that they do not deadlock. */
export function inLockOrder(a: TrajectoryRef, b: TrajectoryRef): number {
  return a.tree === b.tree ? Number(a.key - b.key) : Number(a.tree - b.tree);
}
