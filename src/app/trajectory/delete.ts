import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import type { Deletion, OnBranches } from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';

export interface DeleteTrajectoryArgs {
  readonly trajectoryId: string;
  readonly onBranches: OnBranches;
}

/**
 * Deletes a trajectory (B2). Followers are told as soon as it cannot be found. If the call ends before the last row is removed, maintenance removes the rest.
 * Errors: TRAJECTORY_NOT_FOUND, HAS_BRANCHES.
 */
export async function deleteTrajectory(app: App, caller: Caller, args: DeleteTrajectoryArgs): Promise<Deletion> {
  try {
    const deletion = await app.store.deleteTrajectory(caller.namespace, args.trajectoryId, args.onBranches);
    for (const key of deletion.keys) app.lineages.forget(key);
    return deletion;
  } catch (error) {
    if (!isRefusal(error)) app.maintenance.purgeSoon();
    throw error;
  }
}

/** Whether nothing was deleted. */
function isRefusal(error: unknown): boolean {
  return (
    error instanceof AnabranchError && (error.reason === 'TRAJECTORY_NOT_FOUND' || error.reason === 'HAS_BRANCHES')
  );
}
