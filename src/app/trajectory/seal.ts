import type { SealRequest } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { App } from '../app.ts';
import type { UnaryWriteArgs } from './append_step.ts';

export interface SealTrajectoryArgs extends UnaryWriteArgs {
  readonly seal: SealRequest;
}

/** W5, W8: ends a trajectory for good; the trajectory as it is then. Errors: TRAJECTORY_NOT_FOUND, WRITER_FENCED, TRAJECTORY_SEALED. */
export async function sealTrajectory(_app: App, _caller: Caller, _args: SealTrajectoryArgs): Promise<Trajectory> {
  throw new Error('being written');
}
