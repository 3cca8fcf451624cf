import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { parseUuid } from '../../domain/ids.ts';
import { requireJson, requireText } from '../../domain/text.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { TrajectoryChanges } from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';
import { requireMetrics } from './incoming.ts';

export interface UpdateTrajectoryArgs {
  readonly trajectoryId: string;
  /** What the mask names; at least one. */
  readonly changes: TrajectoryChanges;
}

/** Labels are replaced, metrics merged by key (FM7). Errors: TRAJECTORY_NOT_FOUND. */
export async function updateTrajectory(app: App, caller: Caller, args: UpdateTrajectoryArgs): Promise<Trajectory> {
  const id = parseUuid(args.trajectoryId, 'trajectory_id');
  const { name, labels, metadataJson, metrics } = args.changes;
  if (name === undefined && labels === undefined && metadataJson === undefined && metrics === undefined) {
    throw invalidField('update_mask', 'must name at least one of name, labels, metadata_json, metrics');
  }
  if (name !== undefined) requireText(name, 'name');
  if (metadataJson !== undefined) requireJson(metadataJson, 'metadata_json');
  if (metrics !== undefined) requireMetrics(metrics, 'metrics');
  for (const [key, value] of labels ?? []) {
    requireText(key, 'labels');
    requireText(value, 'labels');
  }
  return app.store.updateTrajectory(caller.namespace, id, args.changes);
}
