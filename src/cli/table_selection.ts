/** Which trajectories and rollouts `anabranch table` reads. */
import type { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, reasonOf } from '../client/index.ts';
import { type CliContext, CliError } from './context.ts';
import { findExperiment, findRun, isId } from './run_reference.ts';
import { FIRST_ANSWER } from './server_access.ts';

export interface SelectionFlags {
  readonly experiment?: string;
  readonly task?: string;
  readonly status?: readonly Status[];
  readonly label?: Readonly<Record<string, string>>;
  readonly name?: string;
  readonly stepLabel?: Readonly<Record<string, string>>;
  readonly minReward?: number;
  readonly maxReward?: number;
  readonly all?: true;
}

export interface Selection {
  /** What is selected. At most one is set; without any, everything is. */
  readonly trajectoryId?: string;
  readonly runId?: string;
  readonly experimentId?: string;
  readonly filters: Omit<SelectionFlags, 'experiment' | 'all'>;
  readonly signal: AbortSignal;
}

/** Finds what the command line names. Errors: those of what does not exist, and CliError if nothing is named. */
export async function selectionOf(
  cli: CliContext,
  client: AnabranchClient,
  argument: string | undefined,
  flags: SelectionFlags,
): Promise<Selection> {
  const { experiment, task, all } = flags;
  const rest = { filters: flags, signal: cli.signal };
  if (all === true && (argument !== undefined || experiment !== undefined)) {
    throw new CliError('--all selects the whole database: leave out TRAJECTORY, RUN and --experiment.', {
      exitCode: 2,
    });
  }
  if (argument !== undefined) {
    if (await isTrajectory(client, argument)) return { trajectoryId: argument.toLowerCase(), ...rest };
    const { id } = await findRun(cli, client, { argument, experiment }, View.BASIC);
    return { runId: id, ...rest };
  }
  if (experiment !== undefined) {
    return { experimentId: (await findExperiment(client, experiment)).id, ...rest };
  }
  if (all === true || task !== undefined) return rest;
  throw new CliError('Name a trajectory, a run, an --experiment or a --task, or add --all.', { exitCode: 2 });
}

/** An id can be that of a trajectory or of a run. */
async function isTrajectory(client: AnabranchClient, argument: string): Promise<boolean> {
  if (!isId(argument)) return false;
  try {
    await client.trajectories.getTrajectory({ trajectoryId: argument }, FIRST_ANSWER);
    return true;
  } catch (error) {
    if (reasonOf(error) !== 'TRAJECTORY_NOT_FOUND') throw error;
    const run = await client.runs.getRun({ runId: argument, view: View.BASIC }, FIRST_ANSWER).catch(() => undefined);
    if (run === undefined) throw error;
    return false;
  }
}
