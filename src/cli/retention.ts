import { fromJson, toJson } from '@bufbuild/protobuf';
import { type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import { Command } from 'commander';
import {
  type ApplyRetentionResponse,
  ApplyRetentionResponseSchema,
  type PlanRetentionResponse,
  type RetentionItem,
  RetentionPin,
  type StoredRetentionPolicy,
  StoredRetentionPolicySchema,
} from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { messageJson, type Paint, paintFor, printable } from './columns.ts';
import { type CliContext, UsageError } from './context.ts';
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

interface RetentionFlags extends PolicyFlags {
  readonly asOf?: Timestamp;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch retention plan --run RUN --state env --keep-last 10 --keep-every 100
  anabranch retention apply --run RUN --state env --keep-last 10 --keep-every 100
  anabranch retention apply --run RUN --state env --keep-last 10 --as-of TIME    what a plan listed
  anabranch retention apply --media image/png --older-than 30d
  anabranch retention apply --experiment sweep --trajectories --older-than 90d
  anabranch retention apply --trajectories --status failed,cancelled --label model=pid --on-branches refuse

Without --run and --experiment, the policy is for the whole namespace. Trajectories that were not sealed are deleted only
with --status. States of tagged steps, of branch points and of terminal steps stay, unless the options --include-… are given. Nothing
of the trajectories of live rollouts is removed. Afterwards, \`anabranch vacuum\` shortens an SQLite file.`;

/** Creates the commands that remove old data. */
export function retentionCommand(cli: CliContext): Command {
  const retention = new Command('retention').description('Remove states of steps, or whole trajectories, by a policy.');
  for (const [name, description] of [
    ['plan', 'Show what a policy would remove, and what is pinned by tags, branches and live rollouts.'],
    ['apply', 'Remove what a policy selects. Writers can continue. What is removed cannot be restored.'],
  ] as const) {
    const command = addPolicyOptions(new Command(name).description(description));
    command.option('--json', 'print messages as JSON, one on a line');
    if (name === 'apply') command.option('--as-of <TIME>', 'time that a plan has printed (default: now)', time);
    addServerOptions(command)
      .addHelpText('after', EXAMPLES)
      .action((flags: RetentionFlags) => retain(cli, name, flags));
    retention.addCommand(command);
  }
  for (const command of [setCommand(cli), listCommand(cli), deleteCommand(cli)]) retention.addCommand(command);
  return retention;
}

function time(text: string): Timestamp {
  try {
    return fromJson(TimestampSchema, text);
  } catch {
    throw new UsageError(`Expected a time such as 2026-11-23T12:00:00.123456Z, not "${text}".`);
  }
}

async function retain(cli: CliContext, verb: 'plan' | 'apply', flags: RetentionFlags): Promise<void> {
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const policy = await policyOf(cli, client, flags);
    const options = { signal: cli.signal };
    const messages: AsyncIterable<PlanRetentionResponse | ApplyRetentionResponse> =
      verb === 'plan'
        ? client.retention.planRetention({ policy }, options)
        : client.retention.applyRetention({ policy, ...(flags.asOf && { asOf: flags.asOf }) }, options);
    for await (const message of messages) await write(cli.stdout, textOf(cli, verb, message, flags));
  });
}

function textOf(
  cli: CliContext,
  verb: 'plan' | 'apply',
  { items, totals, asOf }: PlanRetentionResponse | ApplyRetentionResponse,
  flags: RetentionFlags,
): string {
  if (flags.json) {
    // Both responses have the same fields.
    const message = {
      $typeName: ApplyRetentionResponseSchema.typeName,
      items,
      ...(totals && { totals }),
      ...(asOf && { asOf }),
    };
    return `${messageJson(ApplyRetentionResponseSchema, message)}\n`;
  }
  const { dim } = paintFor(cli.stdout, cli.env);
  const lines = items.map((item) => (item.pins.length > 0 ? dim(itemLine(item)) : itemLine(item)));
  if (totals !== undefined) lines.push(`${verb === 'plan' ? 'Would remove' : 'Removed'} ${totalsText(totals)}.`);
  if (totals !== undefined && asOf !== undefined && verb === 'plan')
    lines.push(dim(`As of ${String(toJson(TimestampSchema, asOf))}`));
  return lines.map((line) => `${line}\n`).join('');
}

const PINS: Readonly<Record<RetentionPin, string>> = {
  [RetentionPin.UNSPECIFIED]: 'unknown',
  [RetentionPin.TAG]: 'tag',
  [RetentionPin.BRANCH]: 'branch',
  [RetentionPin.LIVE_ROLLOUT]: 'live rollout',
};

function itemLine({
  trajectoryId,
  stepNumber,
  stateNames,
  contentMediaTypes,
  deletedFrom,
  pins,
}: RetentionItem): string {
  const place = stepNumber === undefined ? trajectoryId : `${trajectoryId}@${stepNumber}`;
  if (pins.length > 0) return `${place}  pinned by ${pins.map((pin) => PINS[pin]).join(', ')}`;
  if (deletedFrom !== undefined)
    return `${place}  ${deletedFrom === 0n ? 'deleted' : `deleted from step ${deletedFrom} on`}`;
  return `${place}  ${printable([...stateNames, ...contentMediaTypes].join(', '))}`;
}

const STORED_EXAMPLES = `
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

function setCommand(cli: CliContext): Command {
  const command = new Command('set')
    .description('Store a policy that servers apply regularly, or change the one of this name.')
    .argument('<NAME>', 'name of the policy')
    .requiredOption('--interval <TIME>', 'time between two executions: 15m, 12h, 1d', age);
  return addServerOptions(addPolicyOptions(command))
    .addHelpText('after', STORED_EXAMPLES)
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

function listCommand(cli: CliContext): Command {
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

function deleteCommand(cli: CliContext): Command {
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
