import type { Caller } from '../../domain/caller.ts';
import { runNotFound } from '../../domain/errors.ts';
import { parseUuid } from '../../domain/ids.ts';
import { DEFAULT_EXPERIMENT, type Run } from '../../domain/run.ts';
import { requireText } from '../../domain/text.ts';
import type { App } from '../app.ts';

/** A run by its id, or by its name in an experiment (empty: `default`). */
export type RunNamed = { readonly runId: string } | { readonly runName: string; readonly experimentName: string };

/** Errors: RUN_NOT_FOUND. */
export async function getRun(app: App, caller: Caller, which: RunNamed): Promise<Run> {
  if ('runId' in which) return findRun(app, caller, which.runId, 'run_id');
  const name = requireText(which.runName, 'run_name');
  const experimentName = requireText(which.experimentName, 'experiment_name') || DEFAULT_EXPERIMENT;
  const found = await app.store.getRun(caller.namespace, { name, experimentName });
  if (found === undefined) throw runNotFound(name);
  return found;
}

/** The run that a field of a request names. Errors: RUN_NOT_FOUND, INVALID_REQUEST. */
export async function findRun(app: App, caller: Caller, runId: string, field: string): Promise<Run> {
  const id = parseUuid(runId, field);
  const found = await app.store.getRun(caller.namespace, { id });
  if (found === undefined) throw runNotFound(id);
  return found;
}
