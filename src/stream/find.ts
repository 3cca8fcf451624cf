import type { Caller } from '../domain/caller.ts';
import { experimentNotFound, runNotFound, trajectoryNotFound } from '../domain/errors.ts';
import type { Experiment, Run } from '../domain/run.ts';
import type { Trajectory } from '../domain/trajectory.ts';
import type { ExperimentReference } from '../store/contract/experiment.ts';
import type { App } from './app.ts';

/** Errors: TRAJECTORY_NOT_FOUND. */
export async function findTrajectory({ store }: Pick<App, 'store'>, caller: Caller, id: string): Promise<Trajectory> {
  const found = await store.getTrajectory(caller.namespace, id);
  if (found === undefined) throw trajectoryNotFound(id);
  return found;
}

/** Rejects a result that may be incomplete, because the trajectory was deleted. Errors: TRAJECTORY_NOT_FOUND. */
export async function requireStillThere(
  { store }: Pick<App, 'store'>,
  caller: Caller,
  { id, ref }: Trajectory,
): Promise<void> {
  const now = await store.getTrajectory(caller.namespace, id);
  if (now?.ref.key !== ref.key) throw trajectoryNotFound(id);
}

/** Errors: RUN_NOT_FOUND. */
export async function findRun({ store }: Pick<App, 'store'>, caller: Caller, id: string): Promise<Run> {
  const found = await store.getRun(caller.namespace, { id });
  if (found === undefined) throw runNotFound(id);
  return found;
}

/** Errors: EXPERIMENT_NOT_FOUND. */
export async function findExperiment(
  { store }: Pick<App, 'store'>,
  caller: Caller,
  reference: ExperimentReference,
): Promise<Experiment> {
  const found = await store.getExperiment(caller.namespace, reference);
  if (found === undefined) throw experimentNotFound('id' in reference ? reference.id : reference.name);
  return found;
}
