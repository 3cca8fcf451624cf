import { create, toJsonString } from '@bufbuild/protobuf';
import { Command } from 'commander';
import {
  GetTreeResponseSchema,
  ListTrajectoriesResponseSchema,
  type TreeNode,
  TreeNodeSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { columnsOf, paintFor } from './columns.ts';
import type { CliContext } from './context.ts';
import { parsePlace, parseWhole } from './place.ts';
import {
  addServerOptions,
  commandPrefix,
  DEFAULT_ADDRESS,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';
import { drawTree } from './tree_drawing.ts';

interface TreeFlags extends ServerFlags {
  readonly bars?: true;
  readonly limit: string;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch tree                                           the newest roots, with their ids
  anabranch tree 0199f3a2-7c11-7d2e-8a4b-0123456789ab      the tree that this trajectory belongs to
  anabranch tree --database sqlite:.anabranch/data.db      without a server: read a database
  anabranch tree ID --json | jq '.nodes[].trajectory.id'`;

export function treeCommand(cli: CliContext): Command {
  const command = new Command('tree')
    .description(
      'Draw a tree of trajectories: branches with steps, rewards and status. Without an argument, list the roots.',
    )
    .argument('[TRAJECTORY]', 'id of any trajectory of the tree (@STEP or @TAG may follow, and changes nothing)')
    .option('--bars', 'instead of ids draw bars: which steps are whose')
    .option('-n, --limit <N>', 'list at most so many roots', '50')
    .option('--json', 'print the answer as JSON');
  return addServerOptions(command, `the server to ask (default: ${DEFAULT_ADDRESS})`)
    .addHelpText('after', EXAMPLES)
    .action((trajectory: string | undefined, flags: TreeFlags) => runTree(cli, trajectory, flags));
}

async function runTree(cli: CliContext, argument: string | undefined, flags: TreeFlags): Promise<void> {
  const place = argument === undefined ? undefined : parsePlace(argument);
  const limit = Number(parseWhole('--limit', flags.limit, 1n, 1000n));
  await withServerOnExisting(cli, flags, async ({ client, flags: access }) => {
    if (place === undefined) return listRoots(cli, client, { ...flags, limit }, access);
    const nodes = await readTree(client, place.trajectoryId);
    const text = flags.json
      ? toJsonString(GetTreeResponseSchema, create(GetTreeResponseSchema, { nodes }), JSON_FORM)
      : draw(cli, nodes, flags);
    await write(cli.stdout, `${text}\n`);
  });
}

/** As over HTTP: zeros are written. */
const JSON_FORM = { alwaysEmitImplicit: true };
const FIRST_ANSWER_MS = 10_000;

export async function readTree(client: AnabranchClient, trajectoryId: string): Promise<TreeNode[]> {
  const nodes: TreeNode[] = [];
  let pageToken = '';
  do {
    const page = await client.trajectories.getTree(
      { trajectoryId, pageSize: 1000, pageToken },
      { timeoutMs: FIRST_ANSWER_MS },
    );
    nodes.push(...page.nodes);
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
  return nodes;
}

async function listRoots(
  cli: CliContext,
  client: AnabranchClient,
  flags: Omit<TreeFlags, 'limit'> & { readonly limit: number },
  access: string,
): Promise<void> {
  const answer = await client.trajectories.listTrajectories(
    { rootsOnly: true, pageSize: flags.limit },
    { timeoutMs: FIRST_ANSWER_MS },
  );
  if (flags.json) {
    await write(cli.stdout, `${toJsonString(ListTrajectoriesResponseSchema, answer, JSON_FORM)}\n`);
    return;
  }
  const command = commandPrefix(cli);
  if (answer.trajectories.length === 0) {
    await write(cli.stdout, `No trajectories yet. \`${command} demo ${access}\` makes some.\n`);
    return;
  }
  const nodes = answer.trajectories.map((trajectory) => create(TreeNodeSchema, { trajectory }));
  const more = answer.nextPageToken === '' ? '' : `The newest ${flags.limit}; --limit N (up to 1000) lists more.\n`;
  await write(cli.stdout, `${draw(cli, nodes, flags)}\n${more}`);
}

function draw(cli: CliContext, nodes: readonly TreeNode[], { bars }: Pick<TreeFlags, 'bars'>): string {
  const paint = paintFor(cli.stdout, cli.env);
  return drawTree(nodes, { columns: columnsOf(cli.stdout), beside: bars ? 'bars' : 'ids', paint }).join('\n');
}
