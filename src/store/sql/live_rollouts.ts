import { sql } from 'kysely';
import type { Rollout } from '../../domain/rollout.ts';
import type { Page } from '../contract/page.ts';
import type { Engine } from './engine.ts';
import { readRollout, selectPage } from './rollout_rows.ts';

/** Rollouts of a run that are live, by key: appends change what they show, and mark no row of theirs. */
export async function readLiveRollouts(
  engine: Engine,
  namespace: string,
  run: bigint,
  { after = -1n, limit }: Page<bigint>,
): Promise<Rollout[]> {
  const keys = (await liveKeys(engine, namespace, run)).filter((key) => key > after).slice(0, limit);
  if (keys.length === 0) return [];
  const page = engine.db
    .selectFrom('rollouts as r')
    .selectAll('r')
    .where(engine.among(sql.ref('r.key'), keys))
    .limit(keys.length);
  const rows = await selectPage(engine, engine.db, 'BASIC', page).orderBy('r.key').execute();
  return rows.map(readRollout);
}

/** Without an order or a limit, so that no planner prefers the index by key to the index of live rollouts. */
async function liveKeys(engine: Engine, namespace: string, run: bigint): Promise<bigint[]> {
  const rows = await engine.db
    .selectFrom('rollouts as r')
    .select('r.key')
    .where('r.run', '=', run)
    .where('r.namespace', '=', namespace)
    // The condition of the index of live rollouts.
    .where(sql<boolean>`r.status in ('INITIALIZING', 'RUNNING')`)
    .execute();
  return rows.map(({ key }) => key).sort((a, b) => Number(a - b));
}
