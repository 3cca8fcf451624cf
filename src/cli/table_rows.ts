/** Reads the rows that `anabranch table` writes. */
import type { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { StepScope } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchClient, TrajectoryReadOptions } from '../client/index.ts';
import { type Column, TableError } from '../tables/column.ts';
import {
  LARGE_STEP_COLUMNS,
  ROLLOUT_COLUMNS,
  readRolloutRows,
  readRunIds,
  readStepRows,
  readTrajectoryRows,
  STEP_COLUMNS,
  TRAJECTORY_COLUMNS,
} from '../tables/sources.ts';
import { selectColumns, type TableTarget, writeTable } from '../tables/write.ts';
import { type CliContext, CliError, UsageError } from './context.ts';
import type { ProgressBar } from './progress.ts';
import { findExperiment, findRun, isId, ofTrajectory } from './references.ts';
import { getTrajectory } from './step_printer.ts';

export const ROW_KINDS = ['steps', 'trajectories', 'rollouts'] as const;
export type RowKind = (typeof ROW_KINDS)[number];

interface Wanted {
  readonly kind: RowKind;
  /** Names of columns. Default: all. */
  readonly columns: readonly string[] | undefined;
  /** Leaves out inherited steps. */
  readonly own: boolean;
  readonly selection: Selection;
  /** Undefined if no progress is shown. */
  readonly progress: ProgressBar | undefined;
}

/** Writes the selected rows. Errors: CliError, and those of the server and the file system. */
export async function writeRows(client: AnabranchClient, target: TableTarget, wanted: Wanted): Promise<number> {
  const { kind, own, selection, progress } = wanted;
  const options = trajectoryOptions(selection);
  if (kind === 'steps') {
    const columns = named(STEP_COLUMNS, wanted);
    const isSmall = columns.every(({ name }) => !LARGE_STEP_COLUMNS.includes(name));
    const total = progress === undefined ? 0 : await countSteps(client, options, own);
    const steps = own ? StepScope.OWN : StepScope.LINEAGE;
    const rows = readStepRows(client, { ...options, steps, view: isSmall ? View.BASIC : View.FULL });
    return write(target, columns, counted(rows, progress, total));
  }
  if (kind === 'trajectories') {
    const rows = readTrajectoryRows(client, { ...options, view: View.FULL });
    return write(target, named(TRAJECTORY_COLUMNS, wanted), counted(rows, progress));
  }
  const rows = readRolloutRows(client, runIdsOf(client, selection), rolloutOptions(selection));
  return write(target, named(ROLLOUT_COLUMNS, wanted), counted(rows, progress));
}

function named<Source>(columns: readonly Column<Source>[], { columns: names }: Wanted): readonly Column<Source>[] {
  try {
    return selectColumns(columns, names);
  } catch (error) {
    if (!(error instanceof TableError)) throw error;
    throw new UsageError(`--columns: ${error.message}.`, { cause: error });
  }
}

function trajectoryOptions({ trajectoryId, runId, experimentId, filters, signal }: Selection): TrajectoryReadOptions {
  const { minReward, maxReward, name = '', stepLabel = {} } = filters;
  return {
    name,
    stepLabels: { ...stepLabel },
    ...(trajectoryId === undefined ? {} : { trajectoryIds: [trajectoryId] }),
    ...(runId === undefined ? {} : { runId }),
    ...(experimentId === undefined ? {} : { experimentId }),
    ...sharedFilters(filters),
    ...(minReward === undefined ? {} : { minRewardSum: minReward }),
    ...(maxReward === undefined ? {} : { maxRewardSum: maxReward }),
    signal,
  };
}

function rolloutOptions({ filters, signal }: Selection) {
  const { minReward, maxReward, name, stepLabel } = filters;
  if (name !== undefined || stepLabel !== undefined) {
    const flag = name === undefined ? '--step-label' : '--name';
    throw new UsageError(`${flag} selects trajectories: leave it out with --rows rollouts.`);
  }
  return {
    ...sharedFilters(filters),
    ...(minReward === undefined ? {} : { minReward }),
    ...(maxReward === undefined ? {} : { maxReward }),
    signal,
  };
}

function sharedFilters({ task: taskId = '', status = [], label = {} }: Selection['filters']) {
  return { taskId, statuses: [...status], labels: { ...label } };
}

/** Returns the ids of the selected runs. */
async function* runIdsOf(client: AnabranchClient, { trajectoryId, runId, experimentId, signal }: Selection) {
  if (trajectoryId !== undefined) {
    throw new UsageError('--rows rollouts: a trajectory has none. Name a run or an --experiment.');
  }
  if (runId === undefined) yield* readRunIds(client, experimentId ?? '', signal);
  else yield runId;
}

async function countSteps(client: AnabranchClient, options: TrajectoryReadOptions, own: boolean): Promise<number> {
  let count = 0;
  for await (const { nextStepNumber, branchPoint } of readTrajectoryRows(client, { ...options, view: View.BASIC })) {
    count += Number(nextStepNumber) - (own && branchPoint !== undefined ? Number(branchPoint) + 1 : 0);
  }
  return count;
}

/** Shows how many rows were taken. */
async function* counted<Row>(rows: AsyncIterable<Row>, progress: ProgressBar | undefined, total = 0) {
  let done = 0;
  for await (const row of rows) {
    yield row;
    done += 1;
    progress?.show(done, Math.max(done, total));
  }
}

/** Returns the number of rows. */
async function write<Source>(target: TableTarget, columns: readonly Column<Source>[], rows: AsyncIterable<Source>) {
  try {
    return await writeTable(target, columns, rows);
  } catch (error) {
    if (error instanceof TableError) throw new CliError(error.message, { cause: error });
    throw error;
  }
}

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

interface Selection {
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
