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
  const live = engine.db
    .selectFrom('rollouts as r')
    .selectAll('r')
    .where('r.run', '=', run)
    .where('r.namespace', '=', namespace)
    // The condition of the index of live rollouts.
    .where(sql<boolean>`r.status in ('INITIALIZING', 'RUNNING')`)
    .where('r.key', '>', after)
    .orderBy('r.key')
    .limit(limit);
  const rows = await selectPage(engine, engine.db, 'BASIC', live).orderBy('r.key').execute();
  return rows.map(readRollout);
}
