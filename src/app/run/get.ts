import type { Caller } from '../../domain/caller.ts';
import { experimentNotFound, runNotFound } from '../../domain/errors.ts';
import { DEFAULT_EXPERIMENT, type Experiment, type Run } from '../../domain/run.ts';
import type { ExperimentPlace } from '../../store/contract/experiment.ts';
import type { App } from '../app.ts';

/** A run by its id, or by its name in an experiment (empty: `default`). */
export type RunNamed = { readonly runId: string } | { readonly runName: string; readonly experimentName: string };

/** Errors: RUN_NOT_FOUND. */
export async function getRun(app: App, caller: Caller, which: RunNamed): Promise<Run> {
  if ('runId' in which) return findRun(app, caller, which.runId);
  const { runName: name, experimentName } = which;
  const found = await app.store.getRun(caller.namespace, {
    name,
    experimentName: experimentName || DEFAULT_EXPERIMENT,
  });
  if (found === undefined) throw runNotFound(name);
  return found;
}

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
