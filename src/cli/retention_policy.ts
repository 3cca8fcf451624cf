/** The options that describe a retention policy. */
import type { Duration } from '@bufbuild/protobuf/wkt';
import { type Command, Option } from 'commander';
import type { RetentionPolicy, RetentionTotals } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import type { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { OnBranches } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { bytesText, counted } from './columns.ts';
import { type CliContext, UsageError } from './context.ts';
import { parseLabel, parseStatuses } from './filters.ts';
import { addExperimentOption, findExperiment, findRun } from './references.ts';
import { quoted, type ServerFlags } from './server_access.ts';
import { statusName } from './status.ts';

/** Options of every command that takes a policy. */
export interface PolicyFlags extends ServerFlags {
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
}

const ON_BRANCHES = {
  refuse: OnBranches.REFUSE,
  cascade: OnBranches.CASCADE,
  'keep-shared': OnBranches.KEEP_SHARED,
} as const;

/** Options that only a policy for states has. */
const OF_STATES = ['state', 'media', 'keepEvery', 'includeBranchPoints', 'includeTerminal'] as const;

export function addPolicyOptions(command: Command): Command {
  command
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
    .hook('preAction', (_, action) => requireKind(action.opts()));
  return addExperimentOption(command, 'name or id of an experiment, without --run for all its trajectories');
}

function requireKind({ state, media, trajectories }: PolicyFlags): void {
  if (state === undefined && media === undefined && trajectories === undefined)
    throw new UsageError('Expected --state NAME or --media TYPE, or --trajectories.');
}

function wholeNumber(text: string): bigint {
  if (/^\d{1,18}$/.test(text)) return BigInt(text);
  throw new UsageError(`Expected a whole number of at least 0, not "${text}".`);
}

const SECONDS: Readonly<Record<string, bigint>> = { s: 1n, m: 60n, h: 3600n, d: 86_400n };

/** Returns seconds. */
export function age(text: string): bigint {
  const [, count, unit] = /^(\d{1,9})([smhd])$/.exec(text) ?? [];
  if (count === undefined)
    throw new UsageError(`Expected a length of time such as 90s, 15m, 12h or 30d, not "${text}".`);
  return BigInt(count) * SECONDS[unit!]!;
}

/** A run, an experiment, or the namespace, but only if neither is named. */
async function scopeOf(
  cli: CliContext,
  client: AnabranchClient,
  { run, experiment }: PolicyFlags,
): Promise<{ readonly runId?: string; readonly experimentId?: string }> {
  if (run !== undefined) return { runId: (await findRun(cli, client, { argument: run, experiment })).id };
  if (experiment !== undefined) return { experimentId: (await findExperiment(client, experiment)).id };
  return {};
}

export async function policyOf(cli: CliContext, client: AnabranchClient, flags: PolicyFlags) {
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

/** Returns the options that describe a policy. */
export function policyText({ runId, experimentId, states, trajectories }: RetentionPolicy): string {
  const words: string[] = [];
  const option = (name: string, value: string | undefined) => {
    if (value) words.push(`--${name} ${quoted(value)}`);
  };
  const number = (name: string, value: bigint) => option(name, value === 0n ? '' : `${value}`);
  option('run', runId);
  option('experiment', experimentId);
  if (trajectories !== undefined) words.push('--trajectories');
  for (const name of states?.stateNames ?? []) option('state', name);
  for (const type of states?.contentMediaTypes ?? []) option('media', type);
  option('status', trajectories?.statuses.map(statusName).join(','));
  for (const [key, value] of Object.entries(trajectories?.labels ?? {})) option('label', `${key}=${value}`);
  const { keepLast = 0n, olderThan, includeTagged = false } = states ?? trajectories ?? {};
  number('keep-last', keepLast);
  number('keep-every', states?.keepEvery ?? 0n);
  option('older-than', spanText(olderThan));
  for (const [mode, value] of Object.entries(ON_BRANCHES))
    if (value === trajectories?.onBranches) option('on-branches', mode);
  if (includeTagged) words.push('--include-tagged');
  if (states?.includeBranchPoints) words.push('--include-branch-points');
  if (states?.includeTerminal) words.push('--include-terminal');
  return words.join(' ');
}

/** `90s`, `12h`, in the largest unit that is exact. Empty for none. */
export function spanText(span: Duration | undefined): string {
  const seconds = (span?.seconds ?? 0n) + ((span?.nanos ?? 0) > 0 ? 1n : 0n);
  const [unit, length] = Object.entries(SECONDS).findLast(([, each]) => seconds % each === 0n) ?? ['s', 1n];
  return seconds === 0n ? '' : `${seconds / length}${unit}`;
}

export function totalsText({ trajectories, steps, states, logicalBytes, storedBytes }: RetentionTotals): string {
  const what = [counted(trajectories, 'trajectory'), counted(steps, 'step'), counted(states, 'state')].join(', ');
  return `${what}: ${bytesText(logicalBytes)} as they were sent, about ${bytesText(storedBytes)} stored`;
}
