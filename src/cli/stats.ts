import { toJsonString } from '@bufbuild/protobuf';
import { Command } from 'commander';
import {
  type GetDatabaseStatsResponse,
  GetDatabaseStatsResponseSchema,
} from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { bytesText } from './bytes_text.ts';
import { fill, paintFor } from './columns.ts';
import type { CliContext } from './context.ts';
import {
  addServerOptions,
  DEFAULT_ADDRESS,
  JSON_FORM,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';

interface StatsFlags extends ServerFlags {
  readonly json?: true;
}

/** Creates the command that shows what is in a database. */
export function statsCommand(cli: CliContext): Command {
  const command = new Command('stats')
    .description('Show the size of the database, the numbers of its rows, and the largest runs, of all namespaces.')
    .option('--json', 'print the response as JSON');
  return addServerOptions(command, `address of the server (default: ${DEFAULT_ADDRESS})`).action((flags: StatsFlags) =>
    withServerOnExisting(cli, flags, async ({ client }) => {
      const stats = await client.admin.getDatabaseStats({}, { signal: cli.signal });
      const text = flags.json
        ? toJsonString(GetDatabaseStatsResponseSchema, stats, JSON_FORM)
        : statsLines(stats, paintFor(cli.stdout, cli.env).dim).join('\n');
      await write(cli.stdout, `${text}\n`);
    }),
  );
}

const NAME_COLUMNS = 40;
const WIDTH = 12;

function statsLines(stats: GetDatabaseStatsResponse, dim: (text: string) => string): string[] {
  const { bytes, freeBytes, largestRuns } = stats;
  const counts = [
    ['trajectories', stats.trajectories],
    ['steps', stats.steps],
    ['states', stats.states],
    ['runs', stats.runs],
    ['rollouts', stats.rollouts],
    ['metric points', stats.metricPoints],
  ] as const;
  const free = freeBytes === undefined ? '' : `, of which ${bytesText(freeBytes)} are free`;
  const row = (name: string, cells: readonly (string | bigint)[]) =>
    [fill(name, NAME_COLUMNS), ...cells.map((cell) => `${cell}`.padStart(WIDTH))].join(' ');
  const runs = largestRuns.map(({ name, runId, trajectories, steps }) =>
    row(name === '' ? runId : name, [trajectories, steps]),
  );
  return [
    `The database has ${bytesText(bytes)}${free}.`,
    ...counts.map(([name, count]) => row(name, [count])),
    ...(runs.length === 0 ? [] : ['', dim(row('largest runs', ['trajectories', 'steps'])), ...runs]),
  ];
}
