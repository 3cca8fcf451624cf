import type { Run, Stage } from '../../domain/run.ts';
import type { RunChangesRead } from '../contract/run.ts';
import type { Engine } from './engine.ts';
import { findRun } from './run_rows.ts';
import { readStage, selectStages } from './stage_rows.ts';
import { tallyRuns } from './tallies.ts';

const TERMINAL = ['COMPLETED', 'FAILED', 'CANCELLED'];

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
    tallyRuns(engine.db, namespace, [run.key]),
  ]);
  const tally = tallies.get(run.key);
  if (tally === undefined) throw new Error('a run asked for has no tally');
  return { run, stages, tally, horizon };
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
  else if (!allStages) query = query.where('s.status', 'not in', TERMINAL);
  const rows = await query.orderBy('s.key').execute();
  return rows.map(readStage);
}
