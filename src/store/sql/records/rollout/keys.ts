import { sql } from 'kysely';
import { rolloutNotFound } from '../../../../domain/errors.ts';
import type { ReadScope } from '../../kit/transaction.ts';

/**
 * A transaction that locks several rollouts sorts them by this and then by key, so that PENDING ones are locked last. A
 * success locks its own row before the PENDING siblings that it cancels.
 */
export const PENDING_LAST = sql`status = 'PENDING'`;

/** Returns the row key of a rollout of a visible run. Errors: ROLLOUT_NOT_FOUND. */
export async function findRolloutKey({ db, namespace }: ReadScope, id: string): Promise<bigint> {
  const row = await db
    .selectFrom('rollouts as o')
    .innerJoin('runs as r', 'r.key', 'o.run')
    .select('o.key')
    .where('o.namespace', '=', namespace)
    .where('o.id', '=', id)
    .where('r.hidden', '=', 0)
    .executeTakeFirst();
  if (row === undefined) throw rolloutNotFound(id);
  return row.key;
}
