import { Command } from 'commander';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { watchRun } from '../client/index.ts';
import { columnsOf, paintFor } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import { addExperimentOption, findRun } from './run_reference.ts';
import { addServerOptions, DEFAULT_ADDRESS, type ServerFlags, withServerOnExisting } from './server_access.ts';
import { statusName } from './status.ts';
import { jsonWatch, lineWatch, screenWatch, type WatchDisplay } from './watch_display.ts';

interface WatchFlags extends ServerFlags {
  readonly experiment?: string;
  readonly rollouts?: true;
  readonly exitStatus?: true;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch watch main                             live, until the run is completed, failed or cancelled
  anabranch watch main --rollouts                  with its groups and rollouts
  anabranch watch main --exit-status && publish    continues only if it was completed
  anabranch watch main --json                      each change as JSON, one a line`;

export function watchCommand(cli: CliContext): Command {
  const command = new Command('watch')
    .description(
      'Watch a run live until it is completed, failed or cancelled. A terminal shows a live view; other outputs get one line per change.',
    )
    .argument('<RUN>', 'name or id of the run');
  addExperimentOption(command)
    .option('--rollouts', 'also show groups and rollouts')
    .option('--exit-status', 'exit with 1 if the run fails or is cancelled')
    .option('--json', 'print changes as JSON, one per line');
  return addServerOptions(command, `address of the server (default: ${DEFAULT_ADDRESS})`)
    .addHelpText('after', EXAMPLES)
    .action((run: string, flags: WatchFlags) => watch(cli, run, flags));
}

async function watch(cli: CliContext, argument: string, flags: WatchFlags): Promise<void> {
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const { experiment } = flags;
    const { id: runId, name } = await findRun(cli, client, { argument, experiment }, View.BASIC);
    const display = displayFor(cli, flags);
    const onCut = (error: unknown) => void display.cut(error);
    const rollouts = flags.rollouts === true;
    let status = Status.UNSPECIFIED;
    try {
      const options = { runId, rollouts, untilTerminal: true, signal: cli.signal, onCut };
      for await (const picture of watchRun(client, options)) {
        status = picture.run.status;
        await display.show(picture);
      }
    } catch (error) {
      if (cli.signal.aborted) return; // Ctrl-C is the normal end of watching
      throw error;
    }
    if (flags.exitStatus && status !== Status.COMPLETED) throw new CliError(`${name}: ${statusName(status)}.`);
  });
}

function displayFor(cli: CliContext, { json }: WatchFlags): WatchDisplay {
  const { stdout, stderr, env } = cli;
  if (json) return jsonWatch(stdout, stderr);
  const paint = paintFor(stdout, env);
  if (stdout.isTTY === true && env.TERM !== 'dumb') return screenWatch(stdout, () => columnsOf(cli), paint);
  return lineWatch(stdout, stderr, paint);
}
