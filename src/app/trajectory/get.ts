import type { Caller } from '../../domain/caller.ts';
import { trajectoryNotFound } from '../../domain/errors.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { App } from '../app.ts';

/** Errors: TRAJECTORY_NOT_FOUND. */
export async function findTrajectory(app: App, caller: Caller, id: string): Promise<Trajectory> {
  const found = await app.store.getTrajectory(caller.namespace, id);
  if (found === undefined) throw trajectoryNotFound(id);
  return found;
}

/** What was deleted while it was looked at must not look like a short answer. Errors: TRAJECTORY_NOT_FOUND. */
export async function requireStillThere(app: App, caller: Caller, { id, ref }: Trajectory): Promise<void> {
  const now = await app.store.getTrajectory(caller.namespace, id);
  if (now?.ref.key !== ref.key) throw trajectoryNotFound(id);
}
