import { toJsonString } from '@bufbuild/protobuf';
import { Command, Option } from 'commander';
import { StepScope, type StepSeries, StepSeriesSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { seriesRequest } from '../../page/src/tree/read_values.ts';
import { SUM } from '../../page/src/tree/value.ts';
import { columnsOf, paintFor, shortNumber } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import { parsePlotted, VALUE_DOC } from './plotted_value.ts';
import {
  addServerOptions,
  DEFAULT_ADDRESS,
  JSON_FORM,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';
import { sparkline } from './sparkline.ts';
import { getTrajectory } from './step_printer.ts';
import { parseStepReference, parseWhole } from './step_reference.ts';

interface SeriesFlags extends ServerFlags {
  readonly value: string;
  readonly tree?: true;
  readonly own?: true;
  readonly from?: string;
  readonly to?: string;
  readonly points: string;
  readonly csv?: true;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch series ID                               the sum of rewards over the steps of a trajectory
  anabranch series ID --tree --value observation:/2 a number in the observations of each trajectory of its tree
  anabranch series A B --value metric:loss --csv    two trajectories, a point a line: trajectory,step,value
  anabranch series ID --value state:env:/fuel --json

Longer series are downsampled to --points: first, last, smallest and largest value of each stretch of steps. The value
reward is the mean of each stretch. States are read at evenly spaced steps.`;

const MOST_TRAJECTORIES = 1000;

/** Creates the command that prints a value of the steps of trajectories. */
export function seriesCommand(cli: CliContext): Command {
  const command = new Command('series')
    .description(
      'Print a value of the steps of trajectories: rewards, metrics, or numbers in JSON, as sparklines, JSON or CSV.',
    )
    .argument('<TRAJECTORY...>', 'ids of trajectories, at most 1,000')
    .option('--value <VALUE>', VALUE_DOC, SUM)
    .option('--tree', 'of all trajectories of the tree of the one that is named')
    .option('--own', 'leave out inherited steps')
    .option('--from <STEP>', 'begin at this step (default: 0)')
    .option('--to <STEP>', 'end before this step (default: the current end)')
    .option('--points <N>', 'return at most this many points of each trajectory', '1000')
    .addOption(new Option('--csv', 'print a line per point: trajectory,step,value').conflicts('json'))
    .option('--json', 'print the series of each trajectory as JSON, one per line');
  return addServerOptions(command, `address of the server (default: ${DEFAULT_ADDRESS})`)
    .addHelpText('after', EXAMPLES)
    .action((trajectories: string[], flags: SeriesFlags) => printSeries(cli, trajectories, flags));
}

async function printSeries(cli: CliContext, trajectories: readonly string[], flags: SeriesFlags): Promise<void> {
  const ids = [...new Set(trajectories.map((text) => parseStepReference(text).trajectoryId))];
  const request = requestOf(ids, flags);
  await withServerOnExisting(cli, flags, async ({ client }) => {
    // The call ignores ids that do not exist.
    for (const id of ids) await getTrajectory(client, id);
    const all: StepSeries[] = [];
    if (flags.csv) await write(cli.stdout, 'trajectory,step,value\n');
    for await (const { series } of client.trajectories.readStepSeries(request, { signal: cli.signal })) {
      if (flags.csv) await write(cli.stdout, series.map(csvOf).join(''));
      else if (flags.json) {
        await write(cli.stdout, series.map((each) => `${toJsonString(StepSeriesSchema, each, JSON_FORM)}\n`).join(''));
      } else all.push(...series);
    }
    if (!flags.csv && !flags.json) await write(cli.stdout, `${seriesTable(cli, all).join('\n')}\n`);
  });
}

function requestOf(ids: readonly string[], { value, tree, own, from, to, points }: SeriesFlags) {
  if (ids.length > MOST_TRAJECTORIES) {
    throw new CliError(`${ids.length} trajectories are named: expected at most ${MOST_TRAJECTORIES}.`, { exitCode: 2 });
  }
  if (tree && ids.length > 1) {
    throw new CliError(`--tree reads one tree: expected one trajectory, not ${ids.length}.`, { exitCode: 2 });
  }
  return {
    ...seriesRequest(parsePlotted(value)),
    ...(tree ? { treeId: ids[0] ?? '' } : { trajectoryIds: [...ids] }),
    steps: own ? StepScope.OWN : StepScope.LINEAGE,
    startStepNumber: from === undefined ? 0n : parseWhole('--from', from),
    ...(to === undefined ? {} : { endStepNumber: parseWhole('--to', to) }),
    maxPoints: Number(parseWhole('--points', points, 8n, 10_000n)),
  };
}

function csvOf({ trajectoryId, stepNumbers, values }: StepSeries): string {
  return stepNumbers.map((step, i) => `${trajectoryId},${step},${values[i]}\n`).join('');
}

const ID_COLUMNS = 36;
const MOST_SPARK_COLUMNS = 60;

/** Draws a line per trajectory: id, sparkline, and last, smallest and largest value. */
function seriesTable(cli: CliContext, all: readonly StepSeries[]): string[] {
  const paint = paintFor(cli.stdout, cli.env);
  const rows = all.map((series) => ({ series, numbers: rangeOf(series.values) }));
  const titles = ['last', 'least', 'greatest'];
  const widths = titles.map((title, i) =>
    rows.reduce((width, { numbers }) => Math.max(width, numbers[i]?.length ?? 0), title.length),
  );
  const room = columnsOf(cli) - ID_COLUMNS - widths.reduce((sum, width) => sum + width + 1, 0) - 1;
  const spark = Math.max(1, Math.min(MOST_SPARK_COLUMNS, room));
  const tail = (cells: readonly string[]) => cells.map((text, i) => ` ${text.padStart(widths[i] ?? 0)}`).join('');
  return [
    paint.dim('trajectory'.padEnd(ID_COLUMNS + 1 + spark) + tail(titles)),
    ...rows.map(({ series: { trajectoryId, stepNumbers, values }, numbers }) => {
      const points = values.map((value, i) => ({ at: Number(stepNumbers[i] ?? 0n), value }));
      return `${trajectoryId} ${paint.cyan(sparkline(points, spark).padEnd(spark))}${tail(numbers)}`;
    }),
  ];
}

/** The last, smallest and largest number, as text. A series without points has none. */
function rangeOf(values: readonly number[]): string[] {
  const known = values.filter((value) => !Number.isNaN(value));
  const last = values.at(-1);
  if (last === undefined) return ['–', '', ''];
  if (known.length === 0) return [shortNumber(last), '', ''];
  return [last, known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))].map(shortNumber);
}
