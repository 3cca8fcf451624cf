import type { Caller } from '../../domain/caller.ts';
import type { Run } from '../../domain/run.ts';
import type { RunChanges } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import { requireNewName, requirePlan } from './fields.ts';

export interface UpdateRunArgs {
  readonly runId: string;
  /** What the mask names; at least one. */
  readonly changes: RunChanges;
}

/** Labels are replaced, metrics merged by key (FM7). Errors: RUN_NOT_FOUND, RUN_EXISTS. */
export async function updateRun(app: App, caller: Caller, { runId, changes }: UpdateRunArgs): Promise<Run> {
  if (changes.name !== undefined) requireNewName(changes.name);
  requirePlan(changes.plan);
  return app.store.updateRun(caller.namespace, runId, changes);
}
