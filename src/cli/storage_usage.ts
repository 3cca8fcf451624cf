import { toJsonString } from '@bufbuild/protobuf';
import { Command, Option } from 'commander';
import {
  type GetStorageUsageRequest,
  type StorageUsage,
  StorageUsageSchema,
  type UsedBytes,
} from '../../gen/es/anabranch/v1/state_service_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { bytesText } from './bytes_text.ts';
import { paintFor } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import { NO_PROGRESS, progressBar } from './progress_bar.ts';
import { addExperimentOption, findRun } from './run_reference.ts';
import {
  addServerOptions,
  DEFAULT_ADDRESS,
  JSON_FORM,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';

interface UsageFlags extends ServerFlags {
  readonly run?: string;
  readonly experiment?: string;
  readonly trajectory?: string;
  readonly namespace?: true;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch usage --run RUN          all trajectories of a run, and the steps that they inherit
  anabranch usage --trajectory ID    a trajectory with its inherited steps
  anabranch usage --namespace        everything
  anabranch usage --run RUN --json | jq -r .states.uniqueBytes

Logical bytes are those that were sent. Stored bytes are encoded and compressed, without indexes. Shared ones are also
used by other trajectories; deleting the run or the trajectory frees about the unique ones.`;

export function storageUsageCommand(cli: CliContext): Command {
  const command = new Command('usage')
    .description('Show how many bytes the steps and states of a run, of a trajectory or of the namespace take.')
    .addOption(new Option('--run <RUN>', 'id or name of a run').conflicts(['trajectory', 'namespace']))
    .addOption(new Option('--trajectory <ID>', 'id of a trajectory').conflicts(['run', 'namespace']))
    .addOption(new Option('--namespace', 'the whole namespace').conflicts(['run', 'trajectory']))
    .option('--json', 'print the result as JSON');
  return addServerOptions(addExperimentOption(command), `address of the server (default: ${DEFAULT_ADDRESS})`)
    .addHelpText('after', EXAMPLES)
    .action((flags: UsageFlags) => showUsage(cli, flags));
}

async function showUsage(cli: CliContext, flags: UsageFlags): Promise<void> {
  if (flags.run === undefined && flags.trajectory === undefined && flags.namespace === undefined)
    throw new CliError('Expected one of --run RUN, --trajectory ID and --namespace.', { exitCode: 2 });
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const usage = await measure(cli, client, await requestOf(cli, client, flags), flags);
    const text = flags.json
      ? toJsonString(StorageUsageSchema, usage, JSON_FORM)
      : usageLines(usage, paintFor(cli.stdout, cli.env).dim).join('\n');
    await write(cli.stdout, `${text}\n`);
  });
}

async function requestOf(
  cli: CliContext,
  client: AnabranchClient,
  { run, experiment, trajectory }: UsageFlags,
): Promise<Partial<Pick<GetStorageUsageRequest, 'runId' | 'trajectoryId'>>> {
  if (trajectory !== undefined) return { trajectoryId: trajectory };
  if (run === undefined) return {};
  return { runId: (await findRun(cli, client, { argument: run, experiment })).id };
}

async function measure(
  { stdout, signal }: CliContext,
  client: AnabranchClient,
  request: Awaited<ReturnType<typeof requestOf>>,
  flags: UsageFlags,
): Promise<StorageUsage> {
  const progress = stdout.isTTY && !flags.json ? progressBar(stdout, 'steps') : NO_PROGRESS;
  try {
    for await (const { doneSteps, totalSteps, usage } of client.states.getStorageUsage(request, { signal })) {
      if (usage !== undefined) return usage;
      progress.show(Number(doneSteps), Number(totalSteps));
    }
  } finally {
    progress.stop();
  }
  throw new Error('the response of the server has no usage');
}

const COLUMNS = ['logical', 'stored', 'shared', 'unique'] as const;
const WIDTH = 12;

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
