import type { Caller } from '../../domain/caller.ts';
import { parseUuid } from '../../domain/ids.ts';
import type { Deletion, OnBranches } from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';

export interface DeleteTrajectoryArgs {
  readonly trajectoryId: string;
  readonly onBranches: OnBranches;
}

/** B2. Followers of what is gone are told at once. Errors: TRAJECTORY_NOT_FOUND, HAS_BRANCHES. */
export async function deleteTrajectory(app: App, caller: Caller, args: DeleteTrajectoryArgs): Promise<Deletion> {
  const id = parseUuid(args.trajectoryId, 'trajectory_id');
  const deletion = await app.store.deleteTrajectory(caller.namespace, id, args.onBranches);
  for (const key of deletion.keys) {
    app.lineages.forget(key);
    app.changes.announce(key);
  }
  return deletion;
}
