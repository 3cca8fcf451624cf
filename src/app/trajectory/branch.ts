import type { Caller } from '../../domain/caller.ts';
import { parseTagName } from '../../domain/ids.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { App } from '../app.ts';
import { type MakingArgs, makingOf } from './create.ts';

export interface BranchTrajectoryArgs extends MakingArgs {
  /** The trajectory to branch from; the parent will be the owner of the step (B1). */
  readonly trajectoryId: string;
  readonly at: StepPlace;
  /** Empty: the server makes one. */
  readonly branchId: string;
}

/** A step, by its number or by a tag of the trajectory. */
export type StepPlace = { readonly stepNumber: bigint } | { readonly tag: string };

/** Errors: TRAJECTORY_NOT_FOUND, TAG_NOT_FOUND, BRANCH_POINT_BEYOND_END, TRAJECTORY_EXISTS, REQUEST_ID_REUSED. */
export async function branchTrajectory(app: App, caller: Caller, args: BranchTrajectoryArgs): Promise<Trajectory> {
  const { trajectoryId: sourceId } = args;
  const making = makingOf(app, args, args.branchId);
  const at = 'tag' in args.at ? { tag: parseTagName(args.at.tag, 'tag') } : args.at;
  return app.store.branchTrajectory(caller, { ...making, sourceId, at }, args.key);
}
