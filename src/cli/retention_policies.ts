/** The commands of retention policies that servers apply regularly. */
import { toJson } from '@bufbuild/protobuf';
import { type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import { Command } from 'commander';
import {
  type StoredRetentionPolicy,
  StoredRetentionPolicySchema,
} from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { type Paint, paintFor, printable } from './columns.ts';
import type { CliContext } from './context.ts';
import { messageJson } from './json_text.ts';
import {
  addPolicyOptions,
  age,
  type PolicyFlags,
  policyOf,
  policyText,
  spanText,
  totalsText,
} from './retention_policy.ts';
import {
  addServerOptions,
  FIRST_ANSWER,
  readAll,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';

const EXAMPLES = `
Examples:
  anabranch retention set screenshots --interval 1d --media image/png --older-than 30d
  anabranch retention set checkpoints --interval 1h --run RUN --state env --keep-last 10 --keep-every 100
  anabranch retention list
  anabranch retention delete screenshots

A new or changed policy is due at once. \`anabranch retention plan\` with the same options shows what it would remove.
Servers that run on apply it. A server that a command starts with --database does not.`;

interface SetFlags extends PolicyFlags {
  readonly interval: bigint;
}

export function setCommand(cli: CliContext): Command {
  const command = new Command('set')
    .description('Store a policy that servers apply regularly, or change the one of this name.')
    .argument('<NAME>', 'name of the policy')
    .requiredOption('--interval <TIME>', 'time between two executions: 15m, 12h, 1d', age);
  return addServerOptions(addPolicyOptions(command))
    .addHelpText('after', EXAMPLES)
    .action((name: string, flags: SetFlags) =>
      withServerOnExisting(cli, flags, async ({ client }) => {
        const given = { name, policy: await policyOf(cli, client, flags), interval: { seconds: flags.interval } };
        const { retentionPolicy } = await client.retention.setRetentionPolicy(given, FIRST_ANSWER);
        await write(cli.stdout, policyLines(retentionPolicy!, paintFor(cli.stdout, cli.env)));
      }),
    );
}

interface ListFlags extends ServerFlags {
  readonly json?: true;
}

export function listCommand(cli: CliContext): Command {
  const command = new Command('list')
    .description('List the stored policies with their last executions.')
    .option('--json', 'print policies as JSON, one on a line');
  return addServerOptions(command).action((flags: ListFlags) =>
    withServerOnExisting(cli, flags, async ({ client }) => {
      const policies = await readAll(
        (pageToken) => client.retention.listRetentionPolicies({ pageToken, pageSize: 1000 }, FIRST_ANSWER),
        ({ retentionPolicies }) => retentionPolicies,
      );
      const paint = paintFor(cli.stdout, cli.env);
      for (const policy of policies) {
        const json = () => `${messageJson(StoredRetentionPolicySchema, policy)}\n`;
        await write(cli.stdout, flags.json ? json() : policyLines(policy, paint));
      }
      if (policies.length === 0 && !flags.json) await write(cli.stdout, 'No retention policy is stored.\n');
    }),
  );
}

export function deleteCommand(cli: CliContext): Command {
  const command = new Command('delete')
    .description('Delete a stored policy. What it has removed stays removed.')
    .argument('<NAME>', 'name of the policy');
  return addServerOptions(command).action((name: string, flags: ServerFlags) =>
    withServerOnExisting(cli, flags, async ({ client }) => {
      await client.retention.deleteRetentionPolicy({ name }, FIRST_ANSWER);
    }),
  );
}

function policyLines({ name, policy, interval, dueTime, lastExecution }: StoredRetentionPolicy, paint: Paint): string {
  const { startTime, totals, errorReason = '', errorMessage } = lastExecution ?? {};
  const last = totals && `${timeText(startTime)}  removed ${totalsText(totals)}`;
  const lines = [
    ['policy', policy && policyText(policy)],
    ['every', spanText(interval)],
    ['due', timeText(dueTime)],
    ['last', last ?? 'never applied'],
    ['error', errorReason && `${errorReason}: ${errorMessage}`],
  ] as const;
  const shown = lines.flatMap(([label, text]) =>
    text ? [`  ${paint.dim(label.padEnd(7))} ${printable(text)}\n`] : [],
  );
  return `${printable(name)}\n${shown.join('')}`;
}

function timeText(time: Timestamp | undefined): string {
  return time === undefined ? '' : String(toJson(TimestampSchema, time));
}
