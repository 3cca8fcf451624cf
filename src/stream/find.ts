import type { Caller } from '../domain/caller.ts';
import {
  type AnabranchError,
  experimentNotFound,
  runNotFound,
  stageNotFound,
  trajectoryNotFound,
} from '../domain/errors.ts';
import type { Experiment, Run, Stage } from '../domain/run.ts';
import type { Trajectory } from '../domain/trajectory.ts';
import type { ExperimentReference } from '../store/contract/experiment.ts';
import type { App } from './app.ts';

/** Errors: TRAJECTORY_NOT_FOUND. */
export async function findTrajectory({ store }: Pick<App, 'store'>, caller: Caller, id: string): Promise<Trajectory> {
  const found = await store.getTrajectory(caller.namespace, id);
  if (found === undefined) throw trajectoryNotFound(id);
  return found;
}

/** Rejects a result that may be incomplete, because the trajectory was deleted. Errors: `deleted`. */
export async function requireStillThere(
  { store }: Pick<App, 'store'>,
  caller: Caller,
  { id, ref }: Trajectory,
  deleted: (id: string) => AnabranchError = trajectoryNotFound,
): Promise<void> {
  const now = await store.getTrajectory(caller.namespace, id);
  if (now?.ref.key !== ref.key) throw deleted(id);
}

/** Errors: RUN_NOT_FOUND. */
export async function findRun({ store }: Pick<App, 'store'>, caller: Caller, id: string): Promise<Run> {
  const found = await store.getRun(caller.namespace, { id });
  if (found === undefined) throw runNotFound(id);
  return found;
}

/** Errors: STAGE_NOT_FOUND. */
export async function findStage({ store }: Pick<App, 'store'>, caller: Caller, id: string): Promise<Stage> {
  const found = await store.getStage(caller.namespace, { id });
  if (found === undefined) throw stageNotFound(id);
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
