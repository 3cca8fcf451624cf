import { experimentNotFound, invalidField, runNotFound } from '../../domain/errors.ts';
import type { Engine, Tx } from './engine.ts';

/** Row keys of the run and the experiment that a trajectory belongs to. */
export interface Belonging {
  readonly run: bigint | null;
  readonly experiment: bigint | null;
}

/**
 * What a trajectory is to belong to, locked until the transaction ends, so that it cannot be deleted meanwhile (B4). Its verbs go on beside.
 * Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND, INVALID_REQUEST (the experiment is not the run's).
 */
export async function lockBelonging(
  engine: Engine,
  tx: Tx,
  namespace: string,
  runId: string | undefined,
  experimentId: string | undefined,
): Promise<Belonging> {
  const run = runId === undefined ? undefined : await lockRun(engine, tx, namespace, runId);
  const experiment = experimentId === undefined ? undefined : await lockExperiment(engine, tx, namespace, experimentId);
  if (run !== undefined && experiment !== undefined && run.experiment !== experiment) {
    throw invalidField('experiment_id', `is not the experiment of run ${runId}: leave it out, or name that one`);
  }
  return { run: run?.key ?? null, experiment: run?.experiment ?? experiment ?? null };
}

async function lockRun(engine: Engine, tx: Tx, namespace: string, id: string) {
  const query = tx
    .selectFrom('runs')
    .select(['key', 'experiment'])
    .where('namespace', '=', namespace)
    .where('id', '=', id)
    .where('hidden', '=', 0);
  const row = await engine.lock(query, 'keep').executeTakeFirst();
  if (row === undefined) throw runNotFound(id);
  return row;
}

async function lockExperiment(engine: Engine, tx: Tx, namespace: string, id: string): Promise<bigint> {
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
