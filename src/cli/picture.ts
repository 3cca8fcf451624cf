import { writeFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { Command, Option } from 'commander';
import { itemOf } from '../../page/src/tree/item.ts';
import { readValues } from '../../page/src/tree/read_values.ts';
import { type Item, rootOf } from '../../page/src/tree/rows.ts';
import { boundsOf, type Series, spread } from '../../page/src/tree/series.ts';
import { candidates, isPlotted, labelOf, type PlottedValue, SUM } from '../../page/src/tree/value.ts';
import type { AnabranchClient } from '../client/index.ts';
import { type CliContext, CliError, UsageError } from './context.ts';
import { createFile } from './new_file.ts';
import { type Part, type Theme, treePicture } from './picture/tree_picture.ts';
import { addExperimentOption, findRun, ofTrajectory, parseWhole } from './references.ts';
import { addServerOptions, FIRST_ANSWER, type ServerFlags, withServerOnExisting, write } from './server_access.ts';
import { readTree } from './tree.ts';

interface PictureFlags extends ServerFlags {
  readonly output?: string;
  readonly experiment?: string;
  readonly value: string;
  readonly label?: string;
  readonly show: Part;
  readonly theme: Theme;
  readonly rows: string;
}

const EXAMPLES = `
Examples:
  anabranch picture 0199f3a2-7c11-7d2e-8a4b-0123456789ab -o tree.svg
  anabranch picture main -o tree.svg --value metric:loss --theme dark    the tree of a run's main trajectory
  anabranch picture ID --value observation:/2 --show plot > plot.svg     a number in the observations, by JSON Pointer`;

/** Creates the command that draws a tree as the page does. */
export function pictureCommand(cli: CliContext): Command {
  const command = new Command('picture')
    .description('Draw a tree as SVG: a value of its trajectories over their steps, and a bar for each of them.')
    .argument('<TRAJECTORY|RUN>', 'id of any trajectory of the tree, or id or name of a run')
    .option('-o, --output <FILE>', 'the file to create; an existing one is not replaced (default: standard output)')
    .option('--value <VALUE>', VALUE_DOC, SUM)
    .option('--label <TEXT>', 'name of the value in the picture')
    .addOption(new Option('--show <PART>', 'draw this').choices(['both', 'plot', 'bars']).default('both'))
    .addOption(new Option('--theme <THEME>', 'colours').choices(['light', 'dark']).default('light'))
    .option('--rows <N>', 'draw bars of at most this many trajectories', '60');
  addExperimentOption(command);
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((argument: string, flags: PictureFlags) => draw(cli, argument, flags));
}

async function draw(cli: CliContext, argument: string, flags: PictureFlags): Promise<void> {
  const { show: part, theme, output } = flags;
  const value = parsePlotted(flags.value);
  const rows = Number(parseWhole('--rows', flags.rows, 1n, 1000n));
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const items = (await readNodes(cli, client, argument, flags.experiment)).map(itemOf);
    const treeId = rootOf(items)?.id ?? '';
    const series = part === 'bars' ? new Map() : await readValues(client, { treeId }, value, cli.signal);
    if (part !== 'bars') await write(cli.stderr, await noticeOf(client, items, series, value));
    const svg = treePicture({ items, series, label: flags.label ?? labelOf(value), theme, part, rows });
    if (output === undefined) await write(cli.stdout, svg);
    else await createFile(resolve(cli.cwd, output), (path) => writeFile(path, svg, { flag: 'wx' }));
  });
}

/** Returns what a plot cannot show: that there is nothing, or that all lines are one. Empty for other plots. */
async function noticeOf(
  client: AnabranchClient,
  items: readonly Item[],
  series: ReadonlyMap<string, Series>,
  value: PlottedValue,
): Promise<string> {
  if (boundsOf(series.values()) === undefined) {
    const others = [SUM, 'reward', ...(await offeredBy(client, items))].filter((other) => other !== value);
    return `No step has a number at ${value}. Other values: ${others.slice(0, MOST_OFFERED).join(', ')}.\n`;
  }
  const isOne = items.length > 1 && spread(items, series) < 1e-6;
  return isOne ? `All lines of ${labelOf(value)} coincide. --value plots another value.\n` : '';
}

/** Values that a notice names. */
const MOST_OFFERED = 8;

async function offeredBy(client: AnabranchClient, items: readonly Item[]): Promise<PlottedValue[]> {
  const root = items.find(({ deleted, end }) => !deleted && end > 0);
  if (root === undefined) return [];
  const request = { trajectoryId: root.id, stepNumber: BigInt(Math.min(1, root.end - 1)) };
  const { step } = await client.trajectories.getStep(request, FIRST_ANSWER);
  return step === undefined ? [] : candidates(step);
}

/** Returns the tree of a trajectory, or the tree of a run's main trajectory. */
async function readNodes(cli: CliContext, client: AnabranchClient, argument: string, experiment: string | undefined) {
  const nodes = await ofTrajectory(client, argument, ({ trajectoryId }) => readTree(client, trajectoryId));
  if (nodes !== undefined) return nodes;
  const run = await findRun(cli, client, { argument, experiment });
  if (run.mainTrajectoryId === '') throw new CliError(`The run ${run.name} has no main trajectory.`);
  return readTree(client, run.mainTrajectoryId);
}

const VALUE_DOC =
  'the value: sum or reward, metric:KEY, or a number in JSON or a tensor at a JSON Pointer: observation:/0, action:/x, info:/x, state:NAME:/x';

/** Throws UsageError if the text names no value. */
function parsePlotted(text: string): PlottedValue {
  if (isPlotted(text)) return text;
  const expected = 'sum, reward, metric:KEY, observation:/…, action:/…, info:/… or state:NAME:/…';
  throw new UsageError(`--value is "${text}": expected ${expected}.`);
}
