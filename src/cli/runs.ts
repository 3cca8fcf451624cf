import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { Command, Option } from 'commander';
import {
  type ListRunsRequestSchema,
  type ListRunsResponse,
  ListRunsResponseSchema,
  type RunWithProgress,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { RunPageChangesSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import type { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, type RunsPicture, watchRuns } from '../client/index.ts';
import { columnsOf, messageJson, paintFor, printable } from './columns.ts';
import { type CliContext, UsageError } from './context.ts';
import { parseLabel, parseStatuses } from './filters.ts';
import { type Forms, follow } from './follow.ts';
import { experimentFilter, parseWhole } from './references.ts';
import { runsTable } from './runs_table.ts';
import {
  addServerOptions,
  commandPrefix,
  FIRST_ANSWER,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';
import { progressText, runText } from './watch_text.ts';

interface RunsFlags extends ServerFlags {
  readonly experiment?: string;
  readonly status?: readonly Status[];
  readonly label?: Readonly<Record<string, string>>;
  readonly stale?: true;
  readonly roots?: true;
  readonly limit: string;
  readonly page?: string;
  readonly ids?: true;
  readonly follow?: true;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch runs                                        the newest runs and their progress
  anabranch runs --status running,paused                runs that have not ended
  anabranch runs -e cartpole --label model=pid          of one experiment, with a label
  anabranch runs --stale                                those whose heartbeat has stopped
  anabranch runs --ids                                  with their ids, also on a narrow terminal
  anabranch runs --status running --follow              live, until Ctrl-C
  anabranch runs --json | jq -r '.runs[].run.id'`;

const PAGE_SIZE = 1000n;
const MOST = 100_000n;

export function runsCommand(cli: CliContext): Command {
  const command = new Command('runs')
    .description('List runs, newest first: progress, remaining time, status.')
    .option('-e, --experiment <NAME>', 'only runs of this experiment, by name or id')
    .option('--status <STATUS,…>', 'only runs with these statuses, such as running,paused', parseStatuses)
    .option('--label <KEY=VALUE>', 'only runs with this label; can be repeated', parseLabel)
    .option('--stale', 'only runs whose heartbeat has stopped')
    .option('--roots', 'only runs that were not branched from another run')
    .option('-n, --limit <N>', 'list at most this many', '50')
    .option('--page <TOKEN>', 'continue a list: the nextPageToken of --json, with the same filters')
    .option('--ids', 'show ids at any width of the terminal (default: if names fit beside them)')
    .addOption(
      new Option('--follow', 'redraw the list while it changes; without a terminal, print a line per change').conflicts(
        'page',
      ),
    )
    .option('--json', 'print the response as JSON; with --follow, each change, one per line');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((flags: RunsFlags) => listRuns(cli, flags));
}

async function listRuns(cli: CliContext, flags: RunsFlags): Promise<void> {
  const limit = parseWhole('--limit', flags.limit, 1n, MOST);
  if (flags.follow && limit > PAGE_SIZE) {
    throw new UsageError(`--follow follows at most ${PAGE_SIZE} runs: --limit is "${flags.limit}".`);
  }
  await withServerOnExisting(cli, flags, async ({ client }) => {
    if (flags.follow) {
      const view = { list: { ...filterOf(flags), pageSize: Number(limit) }, json: flags.json === true };
      return followRuns(cli, client, view, (runs) =>
        runs.length === 0 ? [nothing(cli, flags)] : tableOf(cli, flags, runs),
      );
    }
    const answer = await readRuns(client, filterOf(flags), { limit, pageToken: flags.page ?? '' });
    if (flags.json) return write(cli.stdout, `${messageJson(ListRunsResponseSchema, answer)}\n`);
    const lines = answer.runs.length === 0 ? [nothing(cli, flags)] : linesOf(cli, flags, answer);
    await write(cli.stdout, `${lines.join('\n')}\n`);
  });
}

type Filter = Omit<MessageInitShape<typeof ListRunsRequestSchema>, '$typeName' | 'pageSize' | 'pageToken'>;

function filterOf({ experiment, status = [], label = {}, stale, roots }: RunsFlags): Filter {
  return {
    ...experimentFilter(experiment),
    statuses: [...status],
    labels: { ...label },
    staleOnly: stale === true,
    rootsOnly: roots === true,
  };
}

/** Reads page by page until the limit. The token continues after the last run. */
async function readRuns(
  client: AnabranchClient,
  filter: Filter,
  { limit, pageToken }: { readonly limit: bigint; readonly pageToken: string },
): Promise<ListRunsResponse> {
  const all = create(ListRunsResponseSchema, { nextPageToken: pageToken });
  do {
    const left = limit - BigInt(all.runs.length);
    const pageSize = Number(left < PAGE_SIZE ? left : PAGE_SIZE);
    const page = await client.runs.listRuns({ ...filter, pageSize, pageToken: all.nextPageToken }, FIRST_ANSWER);
    all.runs.push(...page.runs);
    all.nextPageToken = page.nextPageToken;
  } while (all.nextPageToken !== '' && BigInt(all.runs.length) < limit);
  return all;
}

function linesOf(cli: CliContext, flags: RunsFlags, { runs, nextPageToken }: ListRunsResponse): string[] {
  const table = tableOf(cli, flags, runs);
  if (nextPageToken === '') return table;
  const { limit, page } = flags;
  const shown = page === undefined ? `Shows only the newest ${limit}.` : `Shows only the next ${limit}.`;
  return [...table, `${shown} --limit N lists more; --page continues (see --help).`];
}

function tableOf(cli: CliContext, { experiment, ids }: RunsFlags, runs: readonly RunWithProgress[]): string[] {
  return runsTable(runs, {
    columns: columnsOf(cli),
    paint: paintFor(cli.stdout, cli.env),
    withExperiment: experiment === undefined,
    withIds: ids === true,
  });
}

/** Explains an empty list, and says what to do. */
function nothing(cli: CliContext, { experiment, status, label, stale, roots, page }: RunsFlags): string {
  if (page !== undefined) return 'No more runs.';
  const filters = [experiment, status, label, stale, roots].filter((filter) => filter !== undefined);
  if (filters.length > 0) return `No run matches the filters. \`${commandPrefix(cli)} runs\` lists all runs.`;
  return 'No runs yet: a client creates one with CreateRun (`client.runs.createRun` in TypeScript).';
}

interface RunsView {
  /** The runs to show, as ListRuns takes them. */
  readonly list: MessageInitShape<typeof ListRunsRequestSchema>;
  readonly json: boolean;
}

/** Shows a list of runs while it changes. */
async function followRuns(
  cli: CliContext,
  client: AnabranchClient,
  { list, json }: RunsView,
  table: (runs: readonly RunWithProgress[]) => readonly string[],
): Promise<void> {
  const forms: Forms<RunsPicture> = {
    json: ({ runs, changed }) => {
      if (changed.runs.length === 0 && !changed.page) return undefined;
      const page = changed.page ? { page: { runIds: runs.flatMap(({ run }) => run?.id ?? []) } } : {};
      return messageJson(RunPageChangesSchema, create(RunPageChangesSchema, { runs: [...changed.runs], ...page }));
    },
    changes: ({ changed }) => changed.runs.map(changeOf),
    screen: ({ runs }) => table(runs),
  };
  // A watch waits for an unreachable server. A wrong address must fail at once.
  await client.server.getServerInfo({}, FIRST_ANSWER);
  await follow(cli, json, (onCut) => watchRuns(client, { list, signal: cli.signal, onCut }), forms);
}

/** `ID main: running, training, 58 %` */
function changeOf({ run, progress }: RunWithProgress): readonly [string, string] {
  if (run === undefined) return ['', ''];
  const done = progress === undefined ? '' : progressText(progress);
  return [run.id, `${run.id} ${printable(run.name)}: ${[runText(run), done].filter((text) => text !== '').join(', ')}`];
}
