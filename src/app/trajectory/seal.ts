import type { SealRequest } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import { trajectoryNotFound } from '../../domain/errors.ts';
import { isSealed } from '../../domain/lifecycle.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import { findTrajectory } from '../../stream/find.ts';
import type { App } from '../app.ts';
import { commitUnary, type UnaryWriteArgs } from './append_step.ts';

export interface SealTrajectoryArgs extends UnaryWriteArgs {
  readonly seal: SealRequest;
}

/** W5, W8: ends a trajectory for good; the trajectory as it is then. Errors: TRAJECTORY_NOT_FOUND, WRITER_FENCED, TRAJECTORY_SEALED. */
export async function sealTrajectory(app: App, caller: Caller, args: SealTrajectoryArgs): Promise<Trajectory> {
  await commitUnary(app, caller, args, { steps: [], states: [] }, args.seal);
  const sealed = await findTrajectory(app, caller, args.trajectoryId);
  // Deleted and made again in between: it is another one.
  if (!isSealed(sealed.status)) throw trajectoryNotFound(sealed.id);
  return sealed;
}
