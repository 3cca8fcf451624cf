import type { Caller } from '../../../domain/caller.ts';
import { isSealed, type SealStatus } from '../../../domain/lifecycle.ts';
import type { HeadRow, LockedHead } from '../engine.ts';
import { type RecordedMove, recordStatuses } from '../status/status_changes.ts';
import type { Transaction } from '../transaction.ts';
import { bindOptionalReal, bindReal } from '../values.ts';

/** A trajectory to seal because its run or attempt has ended. */
export interface HeadSeal {
  readonly caller: Caller;
  readonly head: LockedHead;
  readonly status: SealStatus;
  readonly message: string;
}

/**
 * Seals locked trajectories and records their StatusChanges, in a constant number of statements. Sealed trajectories
 * are not changed.
 */
export async function sealHeads(tx: Transaction, now: string, seals: readonly HeadSeal[]): Promise<void> {
  const open = seals.filter(({ head }) => !isSealed(head.status));
  if (open.length === 0) return;
  await tx.engine.updateHeads(
    tx.db,
    open.map((seal) => sealed(seal, now)),
  );
  const moves = open.map(({ caller, head, status, message }): RecordedMove => {
    const entity = { tree: head.tree, noun: 'TRAJECTORY', key: head.key } as const;
    return { caller, entity, move: { ordinal: 1n, from: 'RUNNING', to: status, message } };
  });
  await recordStatuses(tx, now, moves);
}

function sealed({ head, status, message }: HeadSeal, now: string): HeadRow {
  const { tree, key, nextStepNumber, byteSum } = head;
  const sums = {
    rewardSum: bindReal(head.rewardSum),
    branchRewardSum: bindOptionalReal(head.branchRewardSum),
    byteSum,
  };
  const end = { status, statusMessage: message, updateTime: now, sealTime: now };
  return { tree, key, nextStepNumber, ...sums, ...end };
}
