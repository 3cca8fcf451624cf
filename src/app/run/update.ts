import type { Caller } from '../../domain/caller.ts';
import { parseUuid } from '../../domain/ids.ts';
import type { Run } from '../../domain/run.ts';
import { requireJson, requireText } from '../../domain/text.ts';
import type { RunChanges } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import { requireMetrics } from '../trajectory/incoming.ts';
import { requireLabels, requireNewName, requirePlan } from './fields.ts';

export interface UpdateRunArgs {
  readonly runId: string;
  /** What the mask names; at least one. */
  readonly changes: RunChanges;
}

/** Labels are replaced, metrics merged by key (FM7). Errors: RUN_NOT_FOUND, RUN_EXISTS. */
export async function updateRun(app: App, caller: Caller, { runId, changes }: UpdateRunArgs): Promise<Run> {
  const id = parseUuid(runId, 'run_id');
  if (changes.name !== undefined) requireNewName(changes.name);
  requireText(changes.description ?? '', 'description');
  requireJson(changes.metadataJson ?? '', 'metadata_json');
  requireText(changes.statusMessage ?? '', 'status_message');
  requireText(changes.phase ?? '', 'phase');
  requirePlan(changes.plan);
  requireLabels(changes.labels ?? new Map());
  if (changes.metrics !== undefined) requireMetrics(changes.metrics, 'metrics');
  return app.store.updateRun(caller.namespace, id, changes);
}
