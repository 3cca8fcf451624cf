/** Which trajectories and rollouts `anabranch table` reads. */
import type { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { type CliContext, UsageError } from './context.ts';
import { findExperiment, findRun, isId, ofTrajectory } from './run_reference.ts';
import { getTrajectory } from './step_printer.ts';

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

/** Finds what the command line names. Errors: those of what does not exist, and UsageError if nothing is named. */
export async function selectionOf(
  cli: CliContext,
  client: AnabranchClient,
  argument: string | undefined,
  flags: SelectionFlags,
): Promise<Selection> {
  const { experiment, task, all } = flags;
  const rest = { filters: flags, signal: cli.signal };
  if (all === true && (argument !== undefined || experiment !== undefined)) {
    throw new UsageError('--all selects the whole database: leave out TRAJECTORY, RUN and --experiment.');
  }
  if (argument !== undefined) {
    const trajectory = isId(argument)
      ? await ofTrajectory(client, argument, ({ trajectoryId }) => getTrajectory(client, trajectoryId))
      : undefined;
    if (trajectory !== undefined) return { trajectoryId: trajectory.id, ...rest };
    const { id } = await findRun(cli, client, { argument, experiment }, View.BASIC);
    return { runId: id, ...rest };
  }
  if (experiment !== undefined) {
    return { experimentId: (await findExperiment(client, experiment)).id, ...rest };
  }
  if (all === true || task !== undefined) return rest;
  throw new UsageError('Name a trajectory, a run, an --experiment or a --task, or add --all.');
}
