import { sql } from 'kysely';
import type { Rollout } from '../../../../domain/rollout.ts';
import type { Page } from '../../../contract/page.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { readRollout, selectPage } from './rows.ts';

/** Returns the live rollouts of a run, by key. Appends change their values without changing the mark of their rows. */
export async function readLiveRollouts(
  scope: ReadScope,
  run: bigint,
  { after = -1n, limit }: Page<bigint>,
): Promise<Rollout[]> {
  const keys = (await liveKeys(scope, run)).filter((key) => key > after).slice(0, limit);
  if (keys.length === 0) return [];
  const page = scope.db
    .selectFrom('rollouts as r')
    .selectAll('r')
    .where(scope.engine.among(sql.ref('r.key'), keys))
    .limit(keys.length);
  const rows = await selectPage(scope.engine, scope.db, 'BASIC', page).orderBy('r.key').execute();
  return rows.map(readRollout);
}

/** Has no order or limit, so that planners do not prefer the index by key to the index of live rollouts. */
async function liveKeys({ db, namespace }: ReadScope, run: bigint): Promise<bigint[]> {
  const rows = await db
    .selectFrom('rollouts as r')
    .select('r.key')
    .where('r.run', '=', run)
    .where('r.namespace', '=', namespace)
    // Matches the condition of the index of live rollouts literally.
    .where(sql<boolean>`r.status in ('INITIALIZING', 'RUNNING')`)
    .execute();
  return rows.map(({ key }) => key).sort((a, b) => Number(a - b));
}
