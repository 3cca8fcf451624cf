import { create } from '@bufbuild/protobuf';
import { Command } from 'commander';
import { GetRunTreeResponseSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { TreeChangesSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import {
  GetTreeResponseSchema,
  ListTrajectoriesResponseSchema,
  type TreeNode,
  TreeNodeSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, type TreePicture, watchTree } from '../client/index.ts';
import { columnsOf, counted, messageJson, paintFor, printable, shortNumber } from './columns.ts';
import { type CliContext, UsageError } from './context.ts';
import { type Forms, follow } from './follow.ts';
import { addExperimentOption, findRun, isId, ofTrajectory, parseStepReference, parseWhole } from './references.ts';
import { readRunTree } from './run_parts.ts';
import {
  addServerOptions,
  commandPrefix,
  FIRST_ANSWER,
  readAll,
  type ServerFlags,
  withServerOnExisting,
  write,
  writePageLink,
} from './server_access.ts';
import { statusName } from './status.ts';
import { getTrajectory } from './step_printer.ts';
import { drawTree, runItems, type TreeItem, trajectoryItems } from './tree_drawing.ts';

interface TreeFlags extends ServerFlags {
  readonly experiment?: string;
  readonly bars?: true;
  readonly all?: true;
  readonly follow?: true;
  readonly limit: string;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch tree                                           the newest roots, with their ids
  anabranch tree --all                                     also those of runs
  anabranch tree 0199f3a2-7c11-7d2e-8a4b-0123456789ab      the tree that this trajectory belongs to
  anabranch tree main                                      the run of that name, and its branches
  anabranch tree --database sqlite:.anabranch/data.db      without a server: read a database
  anabranch tree ID --follow                               live, until Ctrl-C
  anabranch tree ID --json | jq '.nodes[].trajectory.id'`;

export function treeCommand(cli: CliContext): Command {
  const command = new Command('tree')
    .description(
      'Draw a tree of trajectories, or of runs: branches with steps, rewards and status. Without an argument, list the roots of trees that belong to no run.',
    )
    .argument(
      '[TRAJECTORY|RUN]',
      'id of any trajectory of the tree (@STEP and @TAG are ignored), or id or name of any run',
    );
  addExperimentOption(command)
    .option('--bars', 'draw bars that show who owns which steps, instead of ids')
    .option('--all', 'also list roots that belong to runs, such as those of rollouts')
    .option('--follow', 'redraw the tree of a trajectory while it changes; without a terminal, print a line per change')
    .option('-n, --limit <N>', 'list at most this many roots', '50')
    .option('--json', 'print the response as JSON; with --follow, each change, one per line');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((argument: string | undefined, flags: TreeFlags) => drawTrees(cli, argument, flags));
}

async function drawTrees(cli: CliContext, argument: string | undefined, flags: TreeFlags): Promise<void> {
  const limit = Number(parseWhole('--limit', flags.limit, 1n, 1000n));
  const trajectoryId = argument === undefined ? undefined : trajectoryOf(argument);
  if (flags.follow && trajectoryId === undefined) {
    throw new UsageError('--follow follows the tree of a trajectory: expected the id of one.');
  }
  await withServerOnExisting(cli, flags, async ({ client, flags: access }) => {
    if (flags.follow && trajectoryId !== undefined) return followTree(cli, client, trajectoryId, flags);
    if (argument === undefined) return listRoots(cli, client, { ...flags, limit }, access);
    const nodes = await ofTrajectory(client, argument, (reference) => readTree(client, reference.trajectoryId));
    const { page, text } =
      nodes === undefined
        ? await runTree(cli, client, argument, flags)
        : { page: `/trees/${trajectoryId}`, text: trajectoryTreeText(cli, nodes, flags) };
    await write(cli.stdout, `${text}\n`);
    if (!flags.json) await writePageLink(cli, flags, client, page);
  });
}

/** Returns the id of a trajectory if the argument begins with one. Any other argument is the name of a run. */
function trajectoryOf(argument: string): string | undefined {
  const at = argument.indexOf('@');
  return isId(at < 0 ? argument : argument.slice(0, at)) ? parseStepReference(argument).trajectoryId : undefined;
}

function trajectoryTreeText(cli: CliContext, nodes: TreeNode[], flags: TreeFlags): string {
  if (flags.json) return messageJson(GetTreeResponseSchema, create(GetTreeResponseSchema, { nodes }));
  return draw(cli, trajectoryItems(nodes), { noun: 'trajectory', bars: flags.bars });
}

async function runTree(
  cli: CliContext,
  client: AnabranchClient,
  argument: string,
  flags: TreeFlags,
): Promise<{ readonly page: string; readonly text: string }> {
  const { id, mainTrajectoryId } = await findRun(cli, client, { argument, experiment: flags.experiment });
  const runs = await readRunTree(client, id);
  const text = flags.json
    ? messageJson(GetRunTreeResponseSchema, create(GetRunTreeResponseSchema, { runs }))
    : draw(cli, runItems(runs), { noun: 'run', here: id, bars: flags.bars });
  // The page draws the tree of the main trajectories.
  return { page: mainTrajectoryId === '' ? `/runs/${id}` : `/trees/${mainTrajectoryId}`, text };
}

export function readTree(client: AnabranchClient, trajectoryId: string): Promise<TreeNode[]> {
  return readAll(
    (pageToken) => client.trajectories.getTree({ trajectoryId, pageSize: 1000, pageToken }, FIRST_ANSWER),
    ({ nodes }) => nodes,
  );
}

async function listRoots(
  cli: CliContext,
  client: AnabranchClient,
  flags: Omit<TreeFlags, 'limit'> & { readonly limit: number },
  access: string,
): Promise<void> {
  const request = { rootsOnly: true, withoutRun: flags.all !== true, pageSize: flags.limit };
  const answer = await client.trajectories.listTrajectories(request, FIRST_ANSWER);
  if (flags.json) {
    await write(cli.stdout, `${messageJson(ListTrajectoriesResponseSchema, answer)}\n`);
    return;
  }
  const command = commandPrefix(cli);
  if (answer.trajectories.length === 0) {
    await write(cli.stdout, `${await noRoots(client, command, access)}\n`);
    return;
  }
  const nodes = answer.trajectories.map((trajectory) => create(TreeNodeSchema, { trajectory }));
  const more = answer.nextPageToken === '' ? '' : `The newest ${flags.limit}; --limit N (up to 1000) lists more.\n`;
  await write(cli.stdout, `${draw(cli, trajectoryItems(nodes), { noun: 'trajectory', bars: flags.bars })}\n${more}`);
  await writePageLink(cli, flags, client, '/trees');
}

/** Explains an empty list, and says what to do. */
async function noRoots(client: AnabranchClient, command: string, access: string): Promise<string> {
  const { trajectories } = await client.trajectories.listTrajectories({ rootsOnly: true, pageSize: 1 }, FIRST_ANSWER);
  if (trajectories.length === 0) return `No trajectories yet. \`${command} demo ${access}\` creates some.`;
  return `All trajectories belong to runs. \`${command} runs ${access}\` lists the runs, \`${command} tree --all ${access}\` these trajectories.`;
}

interface Drawn {
  readonly noun: string;
  readonly here?: string;
  readonly bars: true | undefined;
}

function draw(cli: CliContext, items: readonly TreeItem[], { bars, ...what }: Drawn): string {
  const { stdout, env } = cli;
  const options = { columns: columnsOf(cli), beside: bars ? 'bars' : 'ids', paint: paintFor(stdout, env) } as const;
  return drawTree(items, { ...options, ...what }).join('\n');
}

/** Shows a tree of trajectories while it changes. */
async function followTree(
  cli: CliContext,
  client: AnabranchClient,
  treeId: string,
  { json, bars }: { readonly json?: true; readonly bars?: true },
): Promise<void> {
  const forms: Forms<TreePicture> = {
    json: ({ changed: { nodes, removedIds } }) => {
      if (nodes.length === 0 && removedIds.length === 0) return undefined;
      const message = create(TreeChangesSchema, { nodes: [...nodes], removedIds: [...removedIds] });
      return messageJson(TreeChangesSchema, message);
    },
    changes: ({ changed: { nodes, removedIds } }) => [
      ...nodes.map(changeOf),
      ...removedIds.map((id) => [id, `${id}: removed`] as const),
    ],
    screen: ({ nodes }, options) =>
      drawTree(trajectoryItems([...nodes.values()]), {
        ...options,
        noun: 'trajectory',
        beside: bars ? 'bars' : 'ids',
      }),
  };
  // A watch waits for an unreachable server. A wrong address or id must fail at once.
  await getTrajectory(client, treeId);
  await follow(cli, json === true, (onCut) => watchTree(client, { treeId, signal: cli.signal, onCut }), forms);
}

/** `ID gentle: running, 12 steps, reward 3` */
function changeOf({ trajectory, deleted }: TreeNode): readonly [string, string] {
  if (trajectory === undefined) return ['', ''];
  const { id, name, status, nextStepNumber, rewardSum } = trajectory;
  const state = deleted
    ? 'deleted'
    : `${statusName(status)}, ${counted(nextStepNumber, 'step')}, reward ${shortNumber(rewardSum)}`;
  return [id, `${id}${name === '' ? '' : ` ${printable(name)}`}: ${state}`];
}
