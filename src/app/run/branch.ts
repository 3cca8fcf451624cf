import type { Caller } from '../../domain/caller.ts';
import { parseTagName } from '../../domain/ids.ts';
import { BRANCH_CONFIG } from '../../domain/run_config.ts';
import type { MadeRun } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import type { StepPlace } from '../trajectory/branch.ts';
import { type RunMakingArgs, runMakingOf } from './create.ts';

export interface BranchRunArgs extends RunMakingArgs {
  /** The run to branch from. */
  readonly runId: string;
  /** The last step of its main trajectory to share. */
  readonly at: StepPlace;
  /** Ids of the new run and its main trajectory; empty: the server makes them. */
  readonly branchId: string;
  readonly branchTrajectoryId: string;
}

/**
 * Errors: RUN_NOT_FOUND, NO_MAIN_TRAJECTORY, TAG_NOT_FOUND, BRANCH_POINT_BEYOND_END, RUN_EXISTS, TRAJECTORY_EXISTS, REQUEST_ID_REUSED.
 */
export async function branchRun(app: App, caller: Caller, args: BranchRunArgs): Promise<MadeRun> {
  const making = runMakingOf(args, BRANCH_CONFIG.own);
  const at = 'tag' in args.at ? { tag: parseTagName(args.at.tag, 'tag') } : args.at;
  return app.store.branchRun(
    caller,
    {
      ...making,
      id: args.branchId || app.ids.uuid(),
      sourceId: args.runId,
      at,
      trajectoryId: args.branchTrajectoryId || app.ids.uuid(),
      trajectoryUid: app.ids.uid(),
    },
    args.key,
  );
}
