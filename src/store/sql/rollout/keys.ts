import { rolloutNotFound } from '../../../domain/errors.ts';
import type { ReadScope } from '../transaction.ts';

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
