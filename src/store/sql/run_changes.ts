import { TERMINAL_STATUSES } from '../../domain/lifecycle.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Run, Stage } from '../../domain/run.ts';
import type { Page } from '../contract/page.ts';
import type { ChangedIn, RunChangesRead } from '../contract/run.ts';
import type { Engine } from './engine.ts';
import { readGroups, selectGroups } from './group_rows.ts';
import { readRollout, selectRollouts } from './rollout_rows.ts';
import { findRun } from './run_rows.ts';
import { readStage, selectStages } from './stage_rows.ts';
import { tallyRuns } from './tallies.ts';

/**
 * M5. The horizon is read before everything else: what was committed by then is seen by the reads that follow, and what was not bears a mark from the
 * horizon on, so that the next look finds it, however late it commits.
 */
export async function readRunChanges(
  engine: Engine,
  namespace: string,
  runId: string,
  since: bigint | undefined,
  allStages: boolean,
): Promise<RunChangesRead | undefined> {
  const horizon = await engine.readHorizon();
  const run = await findRun(engine, engine.db, namespace, { id: runId }, 'BASIC');
  if (run === undefined) return undefined;
  const [stages, tallies] = await Promise.all([
    readStages(engine, namespace, run, since, allStages),
    tallyRuns(engine, engine.db, namespace, [run.key]),
  ]);
  const tally = tallies.get(run.key);
  if (tally === undefined) throw new Error('a run asked for has no tally');
  return { run, stages, tally, horizon };
}

/** A group changes with its rollouts: what it shows is made of them. */
export async function readChangedGroups(
  engine: Engine,
  namespace: string,
  run: bigint,
  { since, allStages }: ChangedIn,
  page: Page<bigint>,
): Promise<Group[]> {
  let query = selectGroups(engine.db, 'BASIC').where('g.run', '=', run).where('g.namespace', '=', namespace);
  if (since !== undefined) {
    const own = engine.db.selectFrom('groups as c').select('c.key').where('c.run', '=', run);
    const siblings = engine.db.selectFrom('rollouts as c').select('c.group_key as key').where('c.run', '=', run);
    const changed = own.where('c.mark', '>=', since).union(siblings.where('c.mark', '>=', since));
    query = query.where('g.key', 'in', changed);
  } else if (!allStages) query = query.where('s.status', 'not in', TERMINAL_STATUSES);
  if (page.after !== undefined) query = query.where('g.key', '>', page.after);
  return readGroups(engine, engine.db, query.orderBy('g.key').limit(page.limit));
}

export async function readChangedRollouts(
  engine: Engine,
  namespace: string,
  run: bigint,
  { since, allStages }: ChangedIn,
  page: Page<bigint>,
): Promise<Rollout[]> {
  let query = selectRollouts(engine, engine.db, 'BASIC').where('r.run', '=', run).where('r.namespace', '=', namespace);
  if (since !== undefined) query = query.where('r.mark', '>=', since);
  else if (!allStages) query = query.where('s.status', 'not in', TERMINAL_STATUSES);
  if (page.after !== undefined) query = query.where('r.key', '>', page.after);
  const rows = await query.orderBy('r.key').limit(page.limit).execute();
  return rows.map(readRollout);
}

async function readStages(
  engine: Engine,
  namespace: string,
  run: Run,
  since: bigint | undefined,
  allStages: boolean,
): Promise<Stage[]> {
  let query = selectStages(engine.db, 'BASIC').where('s.run', '=', run.key).where('s.namespace', '=', namespace);
  if (since !== undefined) query = query.where('s.mark', '>=', since);
  else if (!allStages) query = query.where('s.status', 'not in', TERMINAL_STATUSES);
  const rows = await query.orderBy('s.key').execute();
  return rows.map(readStage);
}
