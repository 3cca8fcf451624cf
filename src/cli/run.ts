import { type DescMessage, type MessageShape, toJson } from '@bufbuild/protobuf';
import { Command } from 'commander';
import { GroupSchema, RolloutSchema } from '../../gen/es/anabranch/v1/rollout_pb.js';
import { MetricSeriesSchema, ProgressSchema, RunSchema, StageSchema } from '../../gen/es/anabranch/v1/run_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { columnsOf, JSON_FORM, paintFor, valueJson } from './columns.ts';
import type { CliContext } from './context.ts';
import { addExperimentOption, findRun, parseWhole } from './references.ts';
import { readRunRollouts, readRunTree, readSeries, readStageGroups } from './run_parts.ts';
import { type RunParts, runReport } from './run_report.ts';
import {
  addServerOptions,
  FIRST_ANSWER,
  type ServerFlags,
  withServerOnExisting,
  write,
  writePageLink,
} from './server_access.ts';
import { isTerminal } from './status.ts';

interface RunFlags extends ServerFlags {
  readonly experiment?: string;
  readonly metric?: readonly string[];
  readonly stages: string;
  readonly rollouts?: true;
  readonly limit: string;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch run main                        the run of that name
  anabranch run main -e cartpole            of that name in the experiment cartpole
  anabranch run ID --metric train/loss      only this metric
  anabranch run main --rollouts             with a line for each rollout
  anabranch run main --json | jq .run.configJson`;

export function runCommand(cli: CliContext): Command {
  const command = new Command('run')
    .description('Show one run: its progress, config, stages, groups, metrics, and the tree of its branches.')
    .argument('<RUN>', 'name or id of the run');
  addExperimentOption(command)
    .option('--metric <KEY>', 'only this metric; can be repeated', (key, all: readonly string[] = []) => [...all, key])
    .option('--stages <N>', 'show at most this many stages, the newest ones', '10')
    .option('--rollouts', 'list the rollouts of each group')
    .option('-n, --limit <N>', 'list at most this many rollouts', '1000')
    .option('--json', 'print everything as JSON');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((run: string, flags: RunFlags) => showRun(cli, run, flags));
}

async function showRun(cli: CliContext, argument: string, flags: RunFlags): Promise<void> {
  const stages = Number(parseWhole('--stages', flags.stages, 0n, MOST_STAGES));
  const limit = parseWhole('--limit', flags.limit, 1n, MOST_ROLLOUTS);
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const { experiment } = flags;
    const run = await findRun(cli, client, { argument, experiment });
    const wanted = { keys: flags.metric ?? [], stages, rollouts: flags.rollouts ? limit : undefined };
    const parts = await readParts(client, run, wanted);
    const options = { columns: columnsOf(cli), paint: paintFor(cli.stdout, cli.env), stages };
    const text = flags.json ? valueJson(partsJson(parts)) : runReport(parts, options).join('\n');
    await write(cli.stdout, `${text}\n`);
    if (!flags.json) await writePageLink(cli, flags, client, `/runs/${parts.run.id}`);
  });
}

/** Number of the newest stages that are read, for the list of stages and for metrics by stage. */
const MOST_STAGES = 1000n;
const MOST_ROLLOUTS = 100_000n;

interface Wanted {
  /** Keys of metrics. Empty: all. */
  readonly keys: readonly string[];
  /** Number of the newest stages whose groups are listed. */
  readonly stages: number;
  /** Number of rollouts to list. Undefined: groups only. */
  readonly rollouts: bigint | undefined;
}

async function readParts(client: AnabranchClient, run: RunParts['run'], wanted: Wanted): Promise<RunParts> {
  const { keys } = wanted;
  const runId = run.id;
  const listing = { runId, descending: true, pageSize: Number(MOST_STAGES), view: View.BASIC };
  const [{ progress }, { stages, nextPageToken }, tree] = await Promise.all([
    client.runs.getRun({ runId, view: View.BASIC, progress: true }, FIRST_ANSWER),
    client.runs.listStages(listing, FIRST_ANSWER),
    readRunTree(client, runId),
  ]);
  const watched = stages.find(({ status }) => !isTerminal(status)) ?? stages[0];
  const series = await readSeries(client, { runId, keys, stageId: watched?.id });
  stages.reverse();
  const listed =
    wanted.rollouts === undefined
      ? { parts: await readStageGroups(client, stages.slice(-wanted.stages || stages.length)), more: false }
      : await readRunRollouts(client, runId, wanted.rollouts);
  const { parts: rollouts, more: moreRollouts } = listed;
  return { run, progress, stages, earlierStages: nextPageToken !== '', series, rollouts, moreRollouts, tree, keys };
}

function partsJson({ run, progress, stages, series, rollouts, moreRollouts, tree }: RunParts): object {
  const all = <D extends DescMessage>(schema: D, messages: readonly MessageShape<D>[]) =>
    messages.map((message) => toJson(schema, message, JSON_FORM));
  return {
    run: toJson(RunSchema, run, JSON_FORM),
    progress: progress === undefined ? null : toJson(ProgressSchema, progress, JSON_FORM),
    stages: all(StageSchema, stages),
    groups: rollouts.flatMap(({ groups }) => all(GroupSchema, groups)),
    rollouts: rollouts.flatMap((part) => all(RolloutSchema, part.rollouts)),
    moreRollouts,
    metrics: all(MetricSeriesSchema, series),
    tree: all(RunSchema, tree),
  };
}
