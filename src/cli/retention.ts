import { fromJson, toJson, toJsonString } from '@bufbuild/protobuf';
import { type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import { Command, Option } from 'commander';
import {
  type ApplyRetentionResponse,
  ApplyRetentionResponseSchema,
  type PlanRetentionResponse,
  type RetentionItem,
  RetentionPin,
  type RetentionTotals,
} from '../../gen/es/anabranch/v1/retention_service_pb.js';
import type { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { OnBranches } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { bytesText } from './bytes_text.ts';
import { paintFor } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import { parseLabel, parseStatuses } from './filters.ts';
import { addExperimentOption, findExperiment, findRun } from './run_reference.ts';
import {
  addServerOptions,
  DEFAULT_ADDRESS,
  JSON_FORM,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';

interface RetentionFlags extends ServerFlags {
  readonly run?: string;
  readonly experiment?: string;
  readonly state?: readonly string[];
  readonly media?: readonly string[];
  readonly trajectories?: true;
  readonly keepLast?: bigint;
  readonly keepEvery?: bigint;
  readonly olderThan?: bigint;
  readonly status?: readonly Status[];
  readonly label?: Readonly<Record<string, string>>;
  readonly onBranches?: keyof typeof ON_BRANCHES;
  readonly includeTagged?: true;
  readonly includeBranchPoints?: true;
  readonly includeTerminal?: true;
  readonly asOf?: Timestamp;
  readonly json?: true;
}

const ON_BRANCHES = {
  refuse: OnBranches.REFUSE,
  cascade: OnBranches.CASCADE,
  'keep-shared': OnBranches.KEEP_SHARED,
} as const;

/** Options that only a policy for states has. */
const OF_STATES = ['state', 'media', 'keepEvery', 'includeBranchPoints', 'includeTerminal'] as const;

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
    const command = new Command(name)
      .description(description)
      .option('--run <RUN>', 'id or name of a run')
      .option('--state <NAME...>', 'names of the states to remove')
      .option('--media <TYPE...>', 'media types of the contents to remove')
      .addOption(new Option('--trajectories', 'delete whole trajectories').conflicts([...OF_STATES]))
      .option('--keep-last <N>', 'keep the last N steps with such states, or the newest N trajectories', wholeNumber)
      .option('--keep-every <K>', 'keep states of steps whose number is a multiple of K', wholeNumber)
      .option('--older-than <AGE>', 'only what is older: 90s, 15m, 12h, 30d', age)
      .addOption(
        new Option('--status <STATUS,…>', 'trajectories with these statuses (default: completed,failed,cancelled)')
          .argParser(parseStatuses)
          .conflicts([...OF_STATES]),
      )
      .addOption(
        new Option('--label <KEY=VALUE>', 'trajectories with this label; can be repeated')
          .argParser(parseLabel)
          .conflicts([...OF_STATES]),
      )
      .addOption(
        new Option('--on-branches <MODE>', 'trajectories that have branches (default: keep-shared)')
          .choices(Object.keys(ON_BRANCHES))
          .conflicts([...OF_STATES]),
      )
      .option('--include-tagged', 'also what is tagged')
      .option('--include-branch-points', 'also states of branch points')
      .option('--include-terminal', 'also states of terminal steps')
      .option('--json', 'print messages as JSON, one on a line');
    if (name === 'apply') command.option('--as-of <TIME>', 'time that a plan has printed (default: now)', time);
    addExperimentOption(command, 'name or id of an experiment, without --run for all its trajectories');
    addServerOptions(command, `address of the server (default: ${DEFAULT_ADDRESS})`)
      .addHelpText('after', EXAMPLES)
      .action((flags: RetentionFlags) => retain(cli, name, flags));
    retention.addCommand(command);
  }
  return retention;
}

function wholeNumber(text: string): bigint {
  if (/^\d{1,18}$/.test(text)) return BigInt(text);
  throw new CliError(`Expected a whole number of at least 0, not "${text}".`, { exitCode: 2 });
}

function time(text: string): Timestamp {
  try {
    return fromJson(TimestampSchema, text);
  } catch {
    throw new CliError(`Expected a time such as 2026-11-23T12:00:00.123456Z, not "${text}".`, { exitCode: 2 });
  }
}

const SECONDS: Readonly<Record<string, bigint>> = { s: 1n, m: 60n, h: 3600n, d: 86_400n };

/** Returns seconds. */
function age(text: string): bigint {
  const [, count, unit] = /^(\d{1,9})([smhd])$/.exec(text) ?? [];
  if (count === undefined)
    throw new CliError(`Expected an age such as 90s, 15m, 12h or 30d, not "${text}".`, { exitCode: 2 });
  return BigInt(count) * SECONDS[unit!]!;
}

async function retain(cli: CliContext, verb: 'plan' | 'apply', flags: RetentionFlags): Promise<void> {
  if (flags.state === undefined && flags.media === undefined && flags.trajectories === undefined)
    throw new CliError('Expected --state NAME or --media TYPE, or --trajectories.', { exitCode: 2 });
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

/** A run, an experiment, or the namespace, but only if neither is named. */
async function scopeOf(
  cli: CliContext,
  client: AnabranchClient,
  { run, experiment }: RetentionFlags,
): Promise<{ readonly runId?: string; readonly experimentId?: string }> {
  if (run !== undefined) return { runId: (await findRun(cli, client, { argument: run, experiment })).id };
  if (experiment !== undefined) return { experimentId: (await findExperiment(client, experiment)).id };
  return {};
}

async function policyOf(cli: CliContext, client: AnabranchClient, flags: RetentionFlags) {
  const { keepLast = 0n, keepEvery = 0n, includeTagged = false } = flags;
  const olderThan = { seconds: flags.olderThan ?? 0n, nanos: 0 };
  const scope = await scopeOf(cli, client, flags);
  if (flags.trajectories) {
    const onBranches = ON_BRANCHES[flags.onBranches ?? 'keep-shared'];
    const filters = { statuses: [...(flags.status ?? [])], labels: { ...flags.label } };
    return { ...scope, trajectories: { ...filters, keepLast, olderThan, includeTagged, onBranches } };
  }
  const { includeBranchPoints = false, includeTerminal = false } = flags;
  const selected = { stateNames: [...(flags.state ?? [])], contentMediaTypes: [...(flags.media ?? [])] };
  const rules = { keepLast, keepEvery, olderThan, includeTagged, includeBranchPoints, includeTerminal };
  return { ...scope, states: { ...selected, ...rules } };
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
    return `${toJsonString(ApplyRetentionResponseSchema, message, JSON_FORM)}\n`;
  }
  const { dim } = paintFor(cli.stdout, cli.env);
  const lines = items.map((item) => (item.pins.length > 0 ? dim(itemLine(item)) : itemLine(item)));
  if (totals !== undefined) lines.push(totalLine(verb, totals));
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
  return `${place}  ${[...stateNames, ...contentMediaTypes].join(', ')}`;
}

function totalLine(
  verb: 'plan' | 'apply',
  { trajectories, steps, states, logicalBytes, storedBytes }: RetentionTotals,
) {
  const what = `${trajectories} trajectories, ${steps} steps, ${states} states`;
  const bytes = `${bytesText(logicalBytes)} as they were sent, about ${bytesText(storedBytes)} stored`;
  return `${verb === 'plan' ? 'Would remove' : 'Removed'} ${what}: ${bytes}.`;
}
