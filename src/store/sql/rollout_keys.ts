import { rolloutNotFound } from '../../domain/errors.ts';
import type { Db } from './engine.ts';

/** The row key of a rollout of a run that is not deleted. Errors: ROLLOUT_NOT_FOUND. */
export async function findRolloutKey(db: Db, namespace: string, id: string): Promise<bigint> {
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
