import { experimentNotFound, invalidField } from '../../../../domain/errors.ts';
import { keepRun, visibleById } from '../../kit/by_id.ts';
import type { NamespaceTransaction } from '../../kit/transaction.ts';

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
  tx: NamespaceTransaction,
  runId: string | undefined,
  experimentId: string | undefined,
): Promise<Belonging> {
  const experiment = experimentId === undefined ? undefined : await keepExperiment(tx, experimentId);
  const run = runId === undefined ? undefined : await keepRun(tx, runId);
  if (run !== undefined && experiment !== undefined && run.experiment !== experiment) {
    throw invalidField(
      'experiment_id',
      `is not the experiment of run ${runId}: leave it unset, or set that experiment`,
    );
  }
  return { run: run?.key ?? null, experiment: run?.experiment ?? experiment ?? null };
}

async function keepExperiment(tx: NamespaceTransaction, id: string): Promise<bigint> {
  const query = visibleById(tx, 'experiments', id).select('key');
  const row = await tx.engine.locks.rows(query, 'keep').executeTakeFirst();
  if (row === undefined) throw experimentNotFound(id);
  return row.key;
}
