import { sql } from 'kysely';
import { lockPolicies } from '../../kit/named_locks.ts';
import type { Transaction } from '../../kit/transaction.ts';
import { readAttemptValues } from '../attempt/rows.ts';
import { moveMany } from './requeueing.ts';
import type { LockedRollout } from './writing.ts';

/** Actor of the status changes of siblings that the policy cancels. */
const POLICY = 'anabranch';

/**
 * Applies CANCEL_PENDING when a rollout has become a success: cancels the PENDING rollouts of its group. A sibling that
 * is requeued later sees the success. The caller announces the run.
 */
export async function applySuccess(tx: Transaction, success: LockedRollout): Promise<void> {
  if (!(await cancelsPending(tx, success))) return;
  await lockPolicies(tx, [success.group_key]);
  await cancelPending(tx, success);
}

async function cancelsPending(tx: Transaction, { group_key }: LockedRollout): Promise<boolean> {
  const group = await tx.db.selectFrom('groups').select('on_success').where('key', '=', group_key).executeTakeFirst();
  return group?.on_success === 'CANCEL_PENDING';
}

async function cancelPending(tx: Transaction, success: LockedRollout): Promise<void> {
  const query = tx.db
    .selectFrom('rollouts')
    .selectAll()
    .where('group_key', '=', success.group_key)
    .where(sql<boolean>`status = 'PENDING'`)
    .orderBy('key');
  const rows = await tx.engine.locks.rows(query, 'write').execute();
  if (rows.length === 0) return;
  const shown = await readAttemptValues(tx, rows);
  const details = { message: `rollout ${success.number} of its group succeeded`, metadataJson: '', head: undefined };
  const caller = { namespace: success.namespace, actor: POLICY };
  const moves = rows.map((row) => {
    return { caller, row, ...details, to: 'CANCELLED', shown: shown(row.key), ended: undefined } as const;
  });
  await moveMany(tx, moves);
}
