import { create, type MessageInitShape, toJson } from '@bufbuild/protobuf';
import { Command } from 'commander';
import { type Group, GroupSchema } from '../../gen/es/anabranch/v1/rollout_pb.js';
import {
  type ListRolloutsRequestSchema,
  type ListRolloutsResponse,
  ListRolloutsResponseSchema,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { StageSchema } from '../../gen/es/anabranch/v1/run_pb.js';
import type { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { columnsOf, paintFor } from './columns.ts';
import type { CliContext } from './context.ts';
import { parseBound, parseLabel, parseStage, parseStatuses, parseYesNo, type StageKey } from './filters.ts';
import { type RolloutParts, rolloutsTable } from './rollouts_table.ts';
import { addExperimentOption, findRun } from './run_reference.ts';
import {
  addServerOptions,
  commandPrefix,
  DEFAULT_ADDRESS,
  FIRST_ANSWER,
  JSON_FORM,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';
import { parseWhole } from './step_reference.ts';

interface RolloutsFlags extends ServerFlags {
  readonly experiment?: string;
  readonly stage?: StageKey;
  readonly task?: string;
  readonly worker?: string;
  readonly status?: readonly Status[];
  readonly label?: Readonly<Record<string, string>>;
  readonly success?: boolean;
  readonly minReward?: number;
  readonly maxReward?: number;
  readonly tasks?: true;
  readonly limit: string;
  readonly page?: string;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch rollouts main                                 stages, groups with means, and their rollouts
  anabranch rollouts main --stage train-step-2            of one stage
  anabranch rollouts main --status failed --tasks         what failed, and at which task
  anabranch rollouts main --success yes --min-reward 10
  anabranch rollouts main --json | jq -r '.rollouts[].trajectoryId'

Mean reward and success rate of a group or stage include all of its ended rollouts, listed or not.`;

const PAGE_SIZE = 1000n;
const MOST = 100_000n;

export function rolloutsCommand(cli: CliContext): Command {
  const command = new Command('rollouts')
    .description(
      'List the rollouts of a run by stage and group: turns, rewards, verdicts, and the results of their groups.',
    )
    .argument('<RUN>', 'name or id of the run');
  addExperimentOption(command)
    .option('--stage <STAGE>', 'only rollouts of this stage, such as train-step-2 or eval-1', parseStage)
    .option('--task <ID>', 'only rollouts of this task')
    .option('--worker <ID>', 'only rollouts whose last attempt this worker claimed')
    .option('--status <STATUS,…>', 'only rollouts with these statuses, such as running,pending', parseStatuses)
    .option('--label <KEY=VALUE>', 'only rollouts with this label; can be repeated', parseLabel)
    .option('--success <yes|no>', 'only rollouts with this verdict', parseYesNo('--success'))
    .option('--min-reward <N>', 'only rollouts with at least this reward', parseBound('--min-reward'))
    .option('--max-reward <N>', 'only rollouts with at most this reward', parseBound('--max-reward'))
    .option('--tasks', 'show tasks and workers instead of ids')
    .option('-n, --limit <N>', 'list at most this many', '50')
    .option('--page <TOKEN>', 'continue a list: the nextPageToken of --json, with the same filters')
    .option('--json', 'print stages, groups and rollouts as JSON');
  return addServerOptions(command, `address of the server (default: ${DEFAULT_ADDRESS})`)
    .addHelpText('after', EXAMPLES)
    .action((run: string, flags: RolloutsFlags) => listRollouts(cli, run, flags));
}

async function listRollouts(cli: CliContext, argument: string, flags: RolloutsFlags): Promise<void> {
  const limit = parseWhole('--limit', flags.limit, 1n, MOST);
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const { experiment } = flags;
    const { id: runId } = await findRun(cli, client, { argument, experiment }, View.BASIC);
    const filter = await filterOf(client, runId, flags);
    const answer = await readRollouts(client, filter, { limit, pageToken: flags.page ?? '' });
    const parts = await readStages(client, answer);
    const text = flags.json ? partsJson(parts, answer) : linesOf(cli, argument, flags, parts, answer).join('\n');
    await write(cli.stdout, `${text}\n`);
  });
}

type Filter = Omit<MessageInitShape<typeof ListRolloutsRequestSchema>, '$typeName' | 'pageSize' | 'pageToken'>;

async function filterOf(client: AnabranchClient, runId: string, flags: RolloutsFlags): Promise<Filter> {
  const { stage, task = '', worker = '', status = [], label = {}, success, minReward, maxReward } = flags;
  const stageId = stage === undefined ? undefined : await stageIdOf(client, runId, stage);
  return {
    ...(stageId === undefined ? { runId } : { stageId }),
    taskId: task,
    workerId: worker,
    statuses: [...status],
    labels: { ...label },
    ...(success === undefined ? {} : { success }),
    ...(minReward === undefined ? {} : { minReward }),
    ...(maxReward === undefined ? {} : { maxReward }),
  };
}

async function stageIdOf(client: AnabranchClient, runId: string, stage: StageKey): Promise<string> {
  const found = await client.runs.getStage({ runId, ...stage, view: View.BASIC }, FIRST_ANSWER);
  if (found.stage === undefined) throw new Error('the response of the server has no stage');
  return found.stage.id;
}

/** Reads page by page until the limit. The token continues after the last rollout. */
async function readRollouts(
  client: AnabranchClient,
  filter: Filter,
  { limit, pageToken }: { readonly limit: bigint; readonly pageToken: string },
): Promise<ListRolloutsResponse> {
  const all = create(ListRolloutsResponseSchema, { nextPageToken: pageToken });
  do {
    const left = limit - BigInt(all.rollouts.length);
    const pageSize = Number(left < PAGE_SIZE ? left : PAGE_SIZE);
    const request = { ...filter, pageSize, pageToken: all.nextPageToken };
    const page = await client.rollouts.listRollouts(request, FIRST_ANSWER);
    all.rollouts.push(...page.rollouts);
    all.nextPageToken = page.nextPageToken;
  } while (all.nextPageToken !== '' && BigInt(all.rollouts.length) < limit);
  return all;
}

/** Reads the stages of the listed rollouts with their groups: all groups, or those of the listed rollouts. */
async function readStages(client: AnabranchClient, { rollouts }: ListRolloutsResponse): Promise<RolloutParts[]> {
  const parts: RolloutParts[] = [];
  for (const [stageId, own] of Map.groupBy(rollouts, (rollout) => rollout.stageId)) {
    const lastNumber = own.reduce((last, { groupNumber }) => (groupNumber > last ? groupNumber : last), 0n);
    const [{ stage }, groups] = await Promise.all([
      client.runs.getStage({ stageId, view: View.BASIC }, FIRST_ANSWER),
      readGroups(client, stageId, lastNumber),
    ]);
    if (stage === undefined) throw new Error('the response of the server has no stage');
    parts.push({ stage, ...groups, rollouts: own });
  }
  return parts;
}

async function readGroups(
  client: AnabranchClient,
  stageId: string,
  lastNumber: bigint,
): Promise<{ groups: Group[]; allGroups: boolean }> {
  const groups: Group[] = [];
  let pageToken = '';
  do {
    const page = await client.rollouts.listGroups({ stageId, pageSize: Number(PAGE_SIZE), pageToken }, FIRST_ANSWER);
    groups.push(...page.groups);
    pageToken = page.nextPageToken;
  } while (pageToken !== '' && (groups.at(-1)?.number ?? 0n) < lastNumber);
  return { groups, allGroups: pageToken === '' };
}

function partsJson(parts: readonly RolloutParts[], answer: ListRolloutsResponse): string {
  const { rollouts, nextPageToken } = toJson(ListRolloutsResponseSchema, answer, JSON_FORM) as Record<string, unknown>;
  const listed = new Set(answer.rollouts.map(({ groupId }) => groupId));
  const groups = parts.flatMap((part) => part.groups.filter(({ id }) => listed.has(id)));
  return JSON.stringify({
    stages: parts.map(({ stage }) => toJson(StageSchema, stage, JSON_FORM)),
    groups: groups.map((group) => toJson(GroupSchema, group, JSON_FORM)),
    rollouts,
    nextPageToken,
  });
}

function linesOf(
  cli: CliContext,
  argument: string,
  flags: RolloutsFlags,
  parts: readonly RolloutParts[],
  { rollouts, nextPageToken }: ListRolloutsResponse,
): string[] {
  if (rollouts.length === 0) return [nothing(cli, argument, flags)];
  const { stdout, env } = cli;
  const beside = flags.tasks ? 'tasks' : 'ids';
  const table = rolloutsTable(parts, { columns: columnsOf(cli), paint: paintFor(stdout, env), beside });
  if (nextPageToken === '') return table;
  const shown =
    flags.page === undefined ? `Shows only the first ${flags.limit}.` : `Shows only the next ${flags.limit}.`;
  return [...table, `${shown} --limit N lists more; --page continues (see --help).`];
}

/** Explains an empty list, and says what to do. */
function nothing(cli: CliContext, argument: string, flags: RolloutsFlags): string {
  const { stage, task, worker, status, label, success, minReward, maxReward, page } = flags;
  if (page !== undefined) return 'No more rollouts.';
  const filters = [stage, task, worker, status, label, success, minReward, maxReward].filter(
    (filter) => filter !== undefined,
  );
  if (filters.length > 0) {
    return `No rollout matches the filters. \`${commandPrefix(cli)} rollouts ${quotedName(argument)}\` lists all rollouts of the run.`;
  }
  return 'No rollouts yet: a client creates them with CreateRollouts (`client.rollouts.createRollouts` in TypeScript).';
}

function quotedName(argument: string): string {
  return /^[\w.-]+$/.test(argument) ? argument : JSON.stringify(argument);
}
