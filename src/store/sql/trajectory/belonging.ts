import { experimentNotFound, invalidField } from '../../../domain/errors.ts';
import type { Engine, Tx } from '../engine.ts';
import { keepRun } from '../run/keys.ts';

/** Row keys of the run and the experiment that a trajectory belongs to. */
export interface Belonging {
  readonly run: bigint | null;
  readonly experiment: bigint | null;
}

/**
 * Locks the run and experiment of a new trajectory against deletion until the transaction ends (B4). The experiment is
 * locked first, as deletions do. Changes of status are not blocked. Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND,
 * INVALID_REQUEST (the experiment is not the run's).
 */
export async function lockBelonging(
  engine: Engine,
  tx: Tx,
  namespace: string,
  runId: string | undefined,
  experimentId: string | undefined,
): Promise<Belonging> {
  const experiment = experimentId === undefined ? undefined : await keepExperiment(engine, tx, namespace, experimentId);
  const run = runId === undefined ? undefined : await keepRun(engine, tx, namespace, runId);
  if (run !== undefined && experiment !== undefined && run.experiment !== experiment) {
    throw invalidField('experiment_id', `is not the experiment of run ${runId}: leave it out, or name that one`);
  }
  return { run: run?.key ?? null, experiment: run?.experiment ?? experiment ?? null };
}

async function keepExperiment(engine: Engine, tx: Tx, namespace: string, id: string): Promise<bigint> {
  const query = tx
    .selectFrom('experiments')
    .select('key')
    .where('namespace', '=', namespace)
    .where('id', '=', id)
    .where('hidden', '=', 0);
  const row = await engine.lock(query, 'keep').executeTakeFirst();
  if (row === undefined) throw experimentNotFound(id);
  return row.key;
}
