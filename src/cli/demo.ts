import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { toJson } from '@bufbuild/protobuf';
import { Command, Option } from 'commander';
import { SummarySchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { scrubUrl } from '../config/scrub_url.ts';
import type { DemoEvent, DemoResult, TrainingEvent } from '../demo/events.ts';
import { runDemo } from '../demo/experiment.ts';
import { runRolloutWorker, type WorkerTask } from '../demo/rollout_worker.ts';
import { runTraining, type TrainingResult } from '../demo/training.ts';
import { runVariantClient, type VariantTask } from '../demo/variant_client.ts';
import { columnsOf, paintFor } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import { barDisplay, comparisonTable, type DemoDisplay, eventJson, jsonDisplay, lineDisplay } from './demo_display.ts';
import { barTraining, jsonTraining, lineTraining, summaryTable } from './demo_training.ts';
import { type Access, addServerOptions, commandPrefix, type ServerFlags, withServer, write } from './server_access.ts';
import { parseWhole } from './step_reference.ts';
import { readTree } from './tree.ts';
import { drawTree } from './tree_drawing.ts';
import { trajectoryItems } from './tree_items.ts';

interface DemoFlags extends ServerFlags {
  readonly seed: string;
  readonly keep: boolean;
  readonly json?: true;
}

const DESCRIPTION =
  'Play CartPole-v1 into a trajectory, branch it at step 200 into four variants, kill and resume one of them, replay another from a ' +
  'checkpoint, compare them all and draw the tree. Then train: four processes claim rollouts. One of them is killed, and its rollout is claimed again.';

const EXAMPLES = `
Examples:
  anabranch demo                               on a scratch database, which is kept for you to look at
  anabranch demo --address 127.0.0.1:50051     on a server that is running
  anabranch demo --seed 42 --json              other steps, and events for a script`;

const VARIANT_COMMAND = 'demo-variant';
const WORKER_COMMAND = 'demo-worker';
const MAX_SEED = 2n ** 32n - 1n;

export function demoCommand(cli: CliContext): Command {
  const command = new Command('demo')
    .description(DESCRIPTION)
    .option('--seed <N>', 'seed of the environment; the same seed gives the same steps', '7')
    .addOption(new Option('--no-keep', 'remove the scratch database afterwards').conflicts(['address', 'database']))
    .option('--json', 'print events as JSON, one per line');
  return addServerOptions(
    command,
    'address of the server (default: a server within this command, on a scratch SQLite file)',
  )
    .addHelpText('after', EXAMPLES)
    .action((flags: DemoFlags) => runDemoCommand(cli, flags));
}

/** Creates the hidden command that plays one variant. The demo starts it in a process of its own. */
export function demoVariantCommand(cli: CliContext): Command {
  return new Command(VARIANT_COMMAND).argument('<TASK>').action((task: string) => {
    const report = (event: object) => void cli.stdout.write(`${JSON.stringify(event)}\n`);
    return runVariantClient(JSON.parse(task) as VariantTask, { report, signal: cli.signal });
  });
}

/** Creates the hidden command that runs a worker of the training. The demo starts it in a process of its own. */
export function demoWorkerCommand(cli: CliContext): Command {
  return new Command(WORKER_COMMAND).argument('<TASK>').action((task: string) => {
    const report = (event: object) => void cli.stdout.write(`${JSON.stringify(event)}\n`);
    return runRolloutWorker(JSON.parse(task) as WorkerTask, { report, signal: cli.signal });
  });
}

async function runDemoCommand(cli: CliContext, flags: DemoFlags): Promise<void> {
  const seed = Number(parseWhole('--seed', flags.seed, 0n, MAX_SEED));
  if (flags.address !== undefined || flags.database !== undefined) {
    await withServer(cli, flags, (access) => demonstrate(cli, access, { ...flags, seed }));
    return;
  }
  const folder = await mkdtemp(join(tmpdir(), 'anabranch-demo-'));
  try {
    const database = `sqlite:${join(folder, 'demo.db')}`;
    await withServer(cli, { database }, (access) => demonstrate(cli, access, { ...flags, database, seed }));
  } finally {
    if (!flags.keep) await rm(folder, { recursive: true, force: true });
  }
}

interface Demonstration extends Omit<DemoFlags, 'seed'> {
  readonly seed: number;
}

async function demonstrate(cli: CliContext, access: Access, options: Demonstration): Promise<void> {
  const display = displayFor(cli, options);
  const compared: Extract<DemoEvent, { event: 'compared' }>[] = [];
  const onEvent = (event: DemoEvent) => {
    // After this event no bar moves, so the following lines are printed below them.
    if (event.event === 'replayed') display.stop();
    if (event.event === 'compared') compared.push(event);
    display.show(event);
  };
  if (!options.json)
    await write(
      cli.stdout,
      `${paintFor(cli.stdout, cli.env).dim(`Server ${access.client.url}${options.database === undefined ? '' : ` on ${scrubUrl(options.database)}`}\nIn a browser: ${access.client.url}/`)}\n`,
    );
  const { client } = access;
  const variantCommand = [...cli.self, VARIANT_COMMAND];
  const result = await withDisplay(cli, display, () =>
    runDemo({ client, seed: options.seed, variantCommand, onEvent, signal: cli.signal }),
  );
  if (!options.json) await drawOutcome(cli, access, result, compared);
  await conclude(cli, access, { result, training: await demonstrateTraining(cli, access, options), options });
}

/** Runs the training with four workers, one of which is killed. Shows its progress and its summary. */
async function demonstrateTraining(
  cli: CliContext,
  { client }: Access,
  options: Demonstration,
): Promise<TrainingResult> {
  const { stdout, env, signal } = cli;
  const paint = paintFor(stdout, env);
  const display = options.json
    ? jsonTraining(stdout)
    : stdout.isTTY
      ? barTraining(stdout, paint, columnsOf(cli))
      : lineTraining(stdout, paint);
  const workerCommand = [...cli.self, WORKER_COMMAND];
  const onEvent = (event: TrainingEvent) => display.show(event);
  return withDisplay(cli, display, () => runTraining({ client, seed: options.seed, workerCommand, onEvent, signal }));
}

/** Does the work, and stops the display also when the work fails. */
async function withDisplay<T>(cli: CliContext, display: { stop(): void }, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (cli.signal.aborted) throw new CliError('Interrupted.', { cause: error });
    throw error;
  } finally {
    display.stop();
  }
}

function displayFor(cli: CliContext, { json }: Demonstration): DemoDisplay {
  const { stdout, env } = cli;
  if (json) return jsonDisplay(stdout);
  const paint = paintFor(stdout, env);
  return stdout.isTTY ? barDisplay(stdout, paint, columnsOf(cli)) : lineDisplay(stdout, paint);
}

/** Draws the tree of the variants and the table of their differences. */
async function drawOutcome(
  cli: CliContext,
  { client }: Access,
  { main }: DemoResult,
  compared: readonly Extract<DemoEvent, { event: 'compared' }>[],
): Promise<void> {
  const columns = columnsOf(cli);
  const paint = paintFor(cli.stdout, cli.env);
  const nodes = await readTree(client, main.trajectoryId);
  const lines = [
    '',
    ...drawTree(trajectoryItems(nodes), { noun: 'trajectory', columns, beside: 'bars', paint }),
    '',
    ...comparisonTable(compared, columns).map((line, i) => (i === 0 ? paint.dim(line) : line)),
    '',
  ];
  await write(cli.stdout, `${lines.join('\n')}\n`);
}

interface Outcome {
  readonly result: DemoResult;
  readonly training: TrainingResult;
  readonly options: Demonstration;
}

/** Prints the outcome of the training, and the commands that show more. */
async function conclude(
  cli: CliContext,
  { client, flags }: Access,
  { result, training, options }: Outcome,
): Promise<void> {
  const database = options.database === undefined ? undefined : scrubUrl(options.database);
  const { runId, runName, killedRolloutId, summaries } = training;
  if (options.json) {
    const keptDatabase = options.keep && database !== undefined ? { database } : {};
    const summariesJson = summaries.map((summary) => toJson(SummarySchema, summary, { alwaysEmitImplicit: true }));
    const done = {
      event: 'done',
      ...result,
      ...keptDatabase,
      training: { runId, runName, killedRolloutId, summaries: summariesJson },
    };
    await write(cli.stdout, `${eventJson(done)}\n`);
    return;
  }
  const paint = paintFor(cli.stdout, cli.env);
  const command = commandPrefix(cli);
  const fallen = result.variants.at(-1)?.trajectoryId ?? result.main.trajectoryId;
  const lines = ['', ...summaryTable(training, columnsOf(cli)).map((line, i) => (i === 0 ? paint.dim(line) : line))];
  const commands = [
    '',
    'Look around:',
    `  ${command} tree ${result.main.trajectoryId} ${flags}`,
    `  ${command} tail ${fallen}@200 ${flags}`,
    `  ${command} run ${runId} --rollouts ${flags}`,
    'In a browser:',
    options.database === undefined
      ? `  ${client.url}/trees/${result.main.trajectoryId}`
      : `  ${command} serve ${flags}`,
  ];
  await write(cli.stdout, `${[...lines, ...(options.keep ? commands : [])].join('\n')}\n`);
}
