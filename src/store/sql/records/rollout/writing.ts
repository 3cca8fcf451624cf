import type { Selectable, Updateable } from 'kysely';
import { rolloutNotFound } from '../../../../domain/errors.ts';
import type { Status } from '../../../../domain/lifecycle.ts';
import type { RolloutHolding } from '../../../../domain/rollout_moves.ts';
import type { RolloutsTable } from '../../kit/tables.ts';
import { inOneRoundTrip } from '../../kit/together.ts';
import type { NamespaceTransaction, Transaction } from '../../kit/transaction.ts';

export type LockedRollout = Selectable<RolloutsTable>;

/**
 * Locks a rollout's row for writing. A deletion of its run may have held the lock, so a separate statement checks the
 * run and sees what that deletion committed. The run is not locked (Q4). Errors: ROLLOUT_NOT_FOUND.
 */
export async function lockRollout(tx: NamespaceTransaction, id: string): Promise<LockedRollout> {
  const named = tx.db.selectFrom('rollouts as r').where('r.namespace', '=', tx.namespace).where('r.id', '=', id);
  const visible = named.innerJoin('runs as u', 'u.key', 'r.run').select('u.key').where('u.hidden', '=', 0);
  const [row, run] = await inOneRoundTrip([
    tx.engine.locks.rows(named.selectAll('r'), 'write').executeTakeFirst(),
    visible.executeTakeFirst(),
  ]);
  if (row === undefined || run === undefined) throw rolloutNotFound(id);
  return row;
}

/** Returns the columns that decide which verbs are allowed. */
export function holdingOf(row: Pick<LockedRollout, 'id' | 'status' | 'attempt' | 'lease_ms'>): RolloutHolding {
  return { id: row.id, status: row.status as Status, attempt: Number(row.attempt), hasHolder: row.lease_ms > 0n };
}

/**
 * Updates one rollout's row. Sets mark and revision, because watchers of the run see the change (M5). The caller
 * announces the run after the commit.
 */
export async function writeRollout(tx: Transaction, key: bigint, changes: Updateable<RolloutsTable>): Promise<void> {
  const mark = await tx.readMark();
  await tx.db
    .updateTable('rollouts')
    .set((eb) => ({ ...changes, update_time: tx.now, mark, revision: eb('revision', '+', 1n) }))
    .where('key', '=', key)
    .execute();
}
