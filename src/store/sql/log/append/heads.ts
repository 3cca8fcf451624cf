import type { Selectable } from 'kysely';
import type { Head } from '../../../../domain/append.ts';
import type { Caller } from '../../../../domain/caller.ts';
import type { TrajectoryStatus } from '../../../../domain/lifecycle.ts';
import type { Trajectory, TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { LockedHead } from '../../kit/engine.ts';
import { NO_SUMS } from '../../kit/running_sums.ts';
import { rowUpdate, type UpdateOf } from '../../kit/tables/table.ts';
import { TRAJECTORIES } from '../../kit/tables/trajectories.ts';
import type { TrajectoriesTable } from '../../kit/tables.ts';
import { isSet, readList, readOptionalReal, readReal } from '../../kit/values.ts';

/** Columns that `Locks.heads` selects, with the time as `now`. */
export const HEAD_COLUMNS = [
  'tree',
  'key',
  'namespace',
  'id',
  'uid',
  'hidden',
  'branch_point',
  'status',
  'status_message',
  'seal_time',
  'writer_id',
  'writer_epoch',
  'writer_actor',
  'next_step_number',
  'reward_sum',
  'branch_reward_sum',
  'min_reward',
  'max_reward',
  'scored_metrics',
  'byte_sum',
  'timed_turns',
  'turn_seconds',
] as const satisfies readonly (keyof TrajectoriesTable)[];

/** Returns the end of a locked trajectory, which batches move. */
export function headOf(locked: LockedHead): Head {
  const { nextStepNumber, status, statusMessage, writerId, writerEpoch, sums } = locked;
  return { end: nextStepNumber, status, statusMessage, writerId, writerEpoch, rewardSum: sums.rewardSum };
}

/** Returns the row of a root that this transaction created without steps, granted to a writer of the caller. */
export function headOfEmptyRoot({ namespace, actor }: Caller, trajectory: Trajectory): LockedHead {
  const { ref, id, uid, status, statusMessage, writerId, writerEpoch, nextStepNumber, scoredMetrics } = trajectory;
  const row = { id, uid, status, statusMessage, writerId, writerEpoch, nextStepNumber, scoredMetrics };
  return { ...ref, ...row, namespace, writerActor: actor, hidden: false, ownBegin: 0n, sealTime: null, sums: NO_SUMS };
}

export type HeadRowRead = Pick<Selectable<TrajectoriesTable>, (typeof HEAD_COLUMNS)[number]> & { readonly now: string };

export function readHead(row: HeadRowRead): LockedHead {
  return {
    tree: row.tree,
    key: row.key,
    namespace: row.namespace,
    id: row.id,
    uid: row.uid,
    hidden: isSet(row.hidden),
    ownBegin: row.branch_point === null ? 0n : row.branch_point + 1n,
    status: row.status as TrajectoryStatus,
    statusMessage: row.status_message,
    sealTime: row.seal_time,
    writerId: row.writer_id,
    writerEpoch: row.writer_epoch,
    writerActor: row.writer_actor,
    nextStepNumber: row.next_step_number,
    scoredMetrics: readList(row.scored_metrics),
    sums: {
      rewardSum: readReal(row.reward_sum),
      branchRewardSum: readOptionalReal(row.branch_reward_sum),
      minReward: readOptionalReal(row.min_reward),
      maxReward: readOptionalReal(row.max_reward),
      byteSum: row.byte_sum,
      timedTurns: row.timed_turns,
      turnSeconds: readReal(row.turn_seconds),
    },
  };
}

const END_COLUMNS = [
  'next_step_number',
  'reward_sum',
  'branch_reward_sum',
  'min_reward',
  'max_reward',
  'byte_sum',
  'timed_turns',
  'turn_seconds',
] as const;

/** What an append changes, besides the time. */
export const END_UPDATE = rowUpdate(TRAJECTORIES, ['tree', 'key'], END_COLUMNS);

/** What an append or a seal changes. */
export const HEAD_UPDATE = rowUpdate(
  TRAJECTORIES,
  ['tree', 'key'],
  [...END_COLUMNS, 'status', 'status_message', 'update_time', 'seal_time'],
);

export type HeadRow = UpdateOf<typeof HEAD_UPDATE>;

/** What a granted epoch changes. */
export const GRANT_UPDATE = rowUpdate(TRAJECTORIES, ['tree', 'key'], ['writer_id', 'writer_epoch', 'writer_actor']);

/** Every transaction locks heads in this order, so that they do not deadlock. */
export function inLockOrder(a: TrajectoryRef, b: TrajectoryRef): number {
  return a.tree === b.tree ? Number(a.key - b.key) : Number(a.tree - b.tree);
}
