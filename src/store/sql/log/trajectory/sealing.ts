import type { Caller } from '../../../../domain/caller.ts';
import { isSealed, type SealStatus } from '../../../../domain/lifecycle.ts';
import type { LockedHead } from '../../kit/engine.ts';
import { sumColumns } from '../../kit/running_sums.ts';
import { type RecordedMove, recordStatuses } from '../../kit/status/status_changes.ts';
import type { Transaction } from '../../kit/transaction.ts';
import { HEAD_UPDATE, type HeadRow } from '../append/heads.ts';

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
export async function sealHeads(tx: Transaction, seals: readonly HeadSeal[]): Promise<void> {
  const open = seals.filter(({ head }) => !isSealed(head.status));
  if (open.length === 0) return;
  await tx.engine.bulk.update(
    tx.db,
    HEAD_UPDATE,
    open.map((seal) => sealed(seal, tx.now)),
  );
  const moves = open.map(({ caller, head, status, message }): RecordedMove => {
    const entity = { tree: head.tree, noun: 'TRAJECTORY', key: head.key } as const;
    return { caller, entity, move: { ordinal: 1n, from: 'RUNNING', to: status, message } };
  });
  await recordStatuses(tx, moves);
}

function sealed({ head, status, message }: HeadSeal, now: string): HeadRow {
  return {
    tree: head.tree,
    key: head.key,
    next_step_number: head.nextStepNumber,
    ...sumColumns(head.sums),
    status,
    status_message: message,
    update_time: now,
    seal_time: now,
  };
}
