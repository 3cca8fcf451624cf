import type { Caller } from '../../domain/caller.ts';
import { experimentNotFound, runNotFound } from '../../domain/errors.ts';
import type { Experiment, Run } from '../../domain/run.ts';
import type { ExperimentPlace } from '../../store/contract/experiment.ts';
import type { App } from '../app.ts';

/** Errors: RUN_NOT_FOUND. */
export async function findRun(app: App, caller: Caller, id: string): Promise<Run> {
  const found = await app.store.getRun(caller.namespace, { id });
  if (found === undefined) throw runNotFound(id);
  return found;
}

/** By id or by name. Errors: EXPERIMENT_NOT_FOUND. */
export async function findExperiment(app: App, caller: Caller, place: ExperimentPlace): Promise<Experiment> {
  const found = await app.store.getExperiment(caller.namespace, place);
  if (found === undefined) throw experimentNotFound('id' in place ? place.id : place.name);
  return found;
}
