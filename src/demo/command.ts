import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { toJson } from '@bufbuild/protobuf';
import { Command } from 'commander';
import { SummarySchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { columnsOf, JSON_FORM, paintFor } from '../cli/columns.ts';
import { type CliContext, CliError } from '../cli/context.ts';
import { parseWhole } from '../cli/references.ts';
import {
  type Access,
  addServerOptions,
  commandPrefix,
  type ServerFlags,
  withServer,
  write,
} from '../cli/server_access.ts';
import { readTree } from '../cli/tree.ts';
import { drawTree, trajectoryItems } from '../cli/tree_drawing.ts';
import { connectClient } from '../client/index.ts';
import { scrubUrl } from '../config/scrub_url.ts';
import { comparisonTable, eventJson, openDisplay, summaryTable } from './display.ts';
import type { DemoOptions, PlayOptions } from './events.ts';
import { runRolloutWorker, runTraining, type WorkerTask } from './training.ts';
import { type Player, play, playAllVariants } from './variants.ts';

interface DemoFlags extends ServerFlags {
  readonly seed: string;
  readonly json?: true;
}

const DESCRIPTION =
  'Play CartPole-v1 into a trajectory, branch it at step 200 into four variants, kill and resume one of them, replay another from a ' +
  'checkpoint, compare them all and draw the tree. Then train: four processes claim rollouts. One of them is killed, and its rollout is claimed again.';

const EXAMPLES = `
Examples:
  anabranch demo                               on a scratch database, which is removed afterwards
  anabranch demo --database sqlite:demo.db     on a database that is kept for you to look at
  anabranch demo --address 127.0.0.1:50051     on a server that is running
  anabranch demo --seed 42 --json              other steps, and events for a script`;

const CLIENT_COMMAND = 'demo-client';
const MAX_SEED = 2n ** 32n - 1n;

export function demoCommand(cli: CliContext): Command {
  const command = new Command('demo')
    .description(DESCRIPTION)
    .option('--seed <N>', 'seed of the environment; the same seed gives the same steps', '7')
    .option('--json', 'print events as JSON, one per line');
  const scratch = 'a server within this command, on a scratch SQLite file';
  return addServerOptions(command, `address of the server (default: ${scratch})`)
    .addHelpText('after', EXAMPLES)
    .action((flags: DemoFlags) => runDemo(cli, flags));
}

/** Creates the hidden command of a client that the demo starts in a process of its own, to kill it. */
export function demoClientCommand(cli: CliContext): Command {
  return new Command(CLIENT_COMMAND).argument('<TASK>').action(async (text: string) => {
    const { address, ...task } = JSON.parse(text) as { readonly address: string } & (Player | WorkerTask);
    const client = connectClient({ address });
    const onEvent: PlayOptions['onEvent'] = (...report) => void cli.stdout.write(`${eventJson(report)}\n`);
    const options = { client, onEvent, signal: cli.signal };
    try {
      await ('workerId' in task ? runRolloutWorker(task, options) : play(task, options));
    } finally {
      client.close();
    }
  });
}

async function runDemo(cli: CliContext, flags: DemoFlags): Promise<void> {
  const seed = Number(parseWhole('--seed', flags.seed, 0n, MAX_SEED));
  if (flags.address !== undefined || flags.database !== undefined) {
    return withServer(cli, flags, (access) => demonstrate(cli, access, flags, seed));
  }
  const folder = await mkdtemp(join(tmpdir(), 'anabranch-demo-'));
  try {
    const database = `sqlite:${join(folder, 'demo.db')}`;
    await withServer(cli, { database }, (access) => demonstrate(cli, access, flags, seed));
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function demonstrate(cli: CliContext, access: Access, options: DemoFlags, seed: number): Promise<void> {
  const { json = false, address } = options;
  const { client, flags } = access;
  const database = options.database === undefined ? undefined : scrubUrl(options.database);
  const columns = columnsOf(cli);
  const paint = paintFor(cli.stdout, cli.env);
  const print = (...lines: readonly string[]) => write(cli.stdout, `${lines.join('\n')}\n`);
  const withHead = ([head = '', ...lines]: readonly string[]) => [paint.dim(head), ...lines];
  const clientCommand = [...cli.self, CLIENT_COMMAND];
  /** Does a part of the demo, and shows its events. */
  const shown = async <T>(part: (options: DemoOptions) => Promise<T>): Promise<T> => {
    const display = openDisplay(cli, json);
    const onEvent: DemoOptions['onEvent'] = (event, shown) => {
      // After this event no bar moves, so the following lines are printed below them.
      if (event.event === 'replayed') display.stop();
      display.show(event, shown);
    };
    try {
      return await part({ client, seed, clientCommand, onEvent, signal: cli.signal });
    } catch (error) {
      if (cli.signal.aborted) throw new CliError('Interrupted.', { cause: error });
      throw error;
    } finally {
      display.stop();
    }
  };

  if (!json) {
    const on = database === undefined ? '' : ` on ${database}`;
    await print(paint.dim(`Server ${client.url}${on}\nIn a browser: ${client.url}/`));
  }
  const { compared, ...result } = await shown(playAllVariants);
  const { trajectoryId } = result.main;
  if (!json) {
    const items = trajectoryItems(await readTree(client, trajectoryId));
    const tree = drawTree(items, { noun: 'trajectory', columns, beside: 'bars', paint });
    await print('', ...tree, '', ...withHead(comparisonTable(compared, columns)), '');
  }
  const training = await shown(runTraining);
  if (json) {
    const summaries = training.summaries.map((summary) => toJson(SummarySchema, summary, JSON_FORM));
    const kept = database === undefined ? {} : { database };
    return print(eventJson({ event: 'done', ...result, ...kept, training: { ...training, summaries } }));
  }
  await print('', ...withHead(summaryTable(training.summaries, columns)));
  const command = commandPrefix(cli);
  if (address === undefined && database === undefined) {
    await print('', 'The data is removed. To keep it and look around:', `  ${command} demo --database sqlite:demo.db`);
    return;
  }
  const fallen = result.variants.at(-1)?.trajectoryId ?? trajectoryId;
  await print(
    '',
    'Look around:',
    `  ${command} tree ${trajectoryId} ${flags}`,
    `  ${command} tail ${fallen}@200 ${flags}`,
    `  ${command} run ${training.runId} --rollouts ${flags}`,
    'In a browser:',
    database === undefined ? `  ${client.url}/trees/${trajectoryId}` : `  ${command} serve ${flags}`,
  );
}
