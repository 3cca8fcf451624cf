import { Command, Option } from 'commander';
import {
  type GetDatabaseStatsResponse,
  GetDatabaseStatsResponseSchema,
} from '../../gen/es/anabranch/v1/admin_service_pb.js';
import {
  type GetStorageUsageRequest,
  type StorageUsage,
  StorageUsageSchema,
  type UsedBytes,
} from '../../gen/es/anabranch/v1/state_service_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { bytesText, fill, messageJson, paintFor, printable } from './columns.ts';
import type { CliContext } from './context.ts';
import { openProgress } from './progress.ts';
import { addExperimentOption, findRun } from './references.ts';
import { addServerOptions, type ServerFlags, withServerOnExisting, write } from './server_access.ts';

interface StatsFlags extends ServerFlags {
  readonly run?: string;
  readonly experiment?: string;
  readonly trajectory?: string;
  readonly namespace?: true;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch stats                    the whole database
  anabranch stats --run RUN          all trajectories of a run, and the steps that they inherit
  anabranch stats --trajectory ID    a trajectory with its inherited steps
  anabranch stats --run RUN --json | jq -r .states.uniqueBytes

Logical bytes are those that were sent. Stored bytes are encoded and compressed, without indexes. Shared ones are also
used by other trajectories; deleting the run or the trajectory frees about the unique ones.`;

/** Creates the command that shows what is in a database, or what a part of it takes. */
export function statsCommand(cli: CliContext): Command {
  const command = new Command('stats')
    .description('Show the size of the database, the numbers of its rows and the largest runs, or what a part takes.')
    .addOption(new Option('--run <RUN>', 'bytes of a run, by id or name').conflicts(['trajectory', 'namespace']))
    .addOption(new Option('--trajectory <ID>', 'bytes of a trajectory').conflicts(['run', 'namespace']))
    .addOption(new Option('--namespace', 'bytes of the whole namespace').conflicts(['run', 'trajectory']))
    .option('--json', 'print the response as JSON');
  return addServerOptions(addExperimentOption(command))
    .addHelpText('after', EXAMPLES)
    .action((flags: StatsFlags) =>
      withServerOnExisting(cli, flags, async ({ client }) => {
        const whole = flags.run === undefined && flags.trajectory === undefined && flags.namespace === undefined;
        const text = whole ? await statsText(cli, client, flags) : await usageText(cli, client, flags);
        await write(cli.stdout, `${text}\n`);
      }),
    );
}

async function statsText(cli: CliContext, client: AnabranchClient, { json }: StatsFlags): Promise<string> {
  const stats = await client.admin.getDatabaseStats({}, { signal: cli.signal });
  return json
    ? messageJson(GetDatabaseStatsResponseSchema, stats)
    : statsLines(stats, paintFor(cli.stdout, cli.env).dim).join('\n');
}

async function usageText(cli: CliContext, client: AnabranchClient, flags: StatsFlags): Promise<string> {
  const usage = await measure(cli, client, await requestOf(cli, client, flags), flags);
  return flags.json
    ? messageJson(StorageUsageSchema, usage)
    : usageLines(usage, paintFor(cli.stdout, cli.env).dim).join('\n');
}

const NAME_COLUMNS = 40;
const WIDTH = 12;

function statsLines(stats: GetDatabaseStatsResponse, dim: (text: string) => string): string[] {
  const { bytes, freeBytes, largestRuns } = stats;
  const counts = [
    ['trajectories', stats.trajectories],
    ['steps', stats.steps],
    ['states', stats.states + stats.smallStates],
    ['runs', stats.runs],
    ['rollouts', stats.rollouts],
    ['metric points', stats.metricPoints],
  ] as const;
  const free = freeBytes === undefined ? '' : `, of which ${bytesText(freeBytes)} are free`;
  const row = (name: string, cells: readonly (string | bigint)[]) =>
    [fill(name, NAME_COLUMNS), ...cells.map((cell) => `${cell}`.padStart(WIDTH))].join(' ');
  const runs = largestRuns.map(({ name, runId, trajectories, steps }) =>
    row(name === '' ? runId : printable(name), [trajectories, steps]),
  );
  return [
    `The database has ${bytesText(bytes)}${free}.`,
    ...counts.map(([name, count]) => row(name, [count])),
    ...(runs.length === 0 ? [] : ['', dim(row('largest runs', ['trajectories', 'steps'])), ...runs]),
  ];
}

async function requestOf(
  cli: CliContext,
  client: AnabranchClient,
  { run, experiment, trajectory }: StatsFlags,
): Promise<Partial<Pick<GetStorageUsageRequest, 'runId' | 'trajectoryId'>>> {
  if (trajectory !== undefined) return { trajectoryId: trajectory };
  if (run === undefined) return {};
  return { runId: (await findRun(cli, client, { argument: run, experiment })).id };
}

async function measure(
  cli: CliContext,
  client: AnabranchClient,
  request: Awaited<ReturnType<typeof requestOf>>,
  flags: StatsFlags,
): Promise<StorageUsage> {
  using progress = openProgress(cli, flags, 'steps');
  const { signal } = cli;
  for await (const { doneSteps, totalSteps, usage } of client.states.getStorageUsage(request, { signal })) {
    if (usage !== undefined) return usage;
    progress?.show(Number(doneSteps), Number(totalSteps));
  }
  throw new Error('the response of the server has no usage');
}

const COLUMNS = ['logical', 'stored', 'shared', 'unique'] as const;

function usageLines({ steps, states }: StorageUsage, dim: (text: string) => string): string[] {
  const row = (name: string, cells: readonly string[]) =>
    [name.padEnd(6), ...cells.map((cell) => cell.padStart(WIDTH))].join(' ');
  const numbers = (used: UsedBytes | undefined) =>
    [used?.logicalBytes, used?.storedBytes, used?.sharedBytes, used?.uniqueBytes].map((bytes) => bytes ?? 0n);
  const [ofSteps, ofStates] = [numbers(steps), numbers(states)];
  const total = ofSteps.map((bytes, i) => bytes + (ofStates[i] ?? 0n));
  return [
    dim(row('', COLUMNS)),
    row('steps', ofSteps.map(bytesText)),
    row('states', ofStates.map(bytesText)),
    row('total', total.map(bytesText)),
  ];
}
