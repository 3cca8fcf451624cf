import type { Caller } from '../../domain/caller.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { TrajectoryChanges } from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';

export interface UpdateTrajectoryArgs {
  readonly trajectoryId: string;
  /** What the mask names; at least one. */
  readonly changes: TrajectoryChanges;
}

/** Labels are replaced, metrics merged by key (FM7). Errors: TRAJECTORY_NOT_FOUND. */
export async function updateTrajectory(app: App, caller: Caller, args: UpdateTrajectoryArgs): Promise<Trajectory> {
  return app.store.updateTrajectory(caller.namespace, args.trajectoryId, args.changes);
}
