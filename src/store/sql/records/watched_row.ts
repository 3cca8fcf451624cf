import type { Updateable } from 'kysely';
import type { Tables } from '../kit/tables.ts';
import type { Transaction } from '../kit/transaction.ts';

/** Tables whose rows the watchers of a run see. */
type Watched = 'runs' | 'stages' | 'groups' | 'rollouts';

/**
 * Updates a row that watchers of its run see (M5): sets its mark, revision and time. The caller announces the run after
 * the commit.
 */
export async function writeWatched<T extends Watched>(
  tx: Transaction,
  table: T,
  key: bigint,
  changes: Updateable<Tables[T]>,
): Promise<void> {
  const mark = await tx.readMark();
  await tx.db
    .updateTable(table as Watched)
    .set((eb) => ({ ...changes, update_time: tx.now, mark, revision: eb('revision', '+', 1n) }))
    .where('key', '=', key)
    .execute();
}
