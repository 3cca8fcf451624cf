import { toJson } from '@bufbuild/protobuf';
import { Command } from 'commander';
import { StorageCheck, type StorageFault, StorageFaultSchema } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { paintFor } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import { NO_PROGRESS, progressBar } from './progress_bar.ts';
import {
  addServerOptions,
  DEFAULT_ADDRESS,
  JSON_FORM,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';

interface VerifyFlags extends ServerFlags {
  readonly json?: true;
}

const DESCRIPTION =
  'Read everything in the database, and check that it is intact: steps, states, sums, references and histories. Blocks no writer. ' +
  'The exit code is 1 if something is wrong; each line names the step or the state.';

const EXAMPLES = `
Examples:
  anabranch verify                                        the database of a running server
  anabranch verify --database sqlite:.anabranch/data.db   a database that no server uses
  anabranch verify --json | jq .faults`;

/** Creates the command that verifies a database. */
export function verifyCommand(cli: CliContext): Command {
  const command = new Command('verify').description(DESCRIPTION).option('--json', 'print the result as JSON');
  return addServerOptions(command, `address of the server (default: ${DEFAULT_ADDRESS})`)
    .addHelpText('after', EXAMPLES)
    .action((flags: VerifyFlags) => verify(cli, flags));
}

async function verify(cli: CliContext, flags: VerifyFlags): Promise<void> {
  const { stdout, signal } = cli;
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const progress = stdout.isTTY && !flags.json ? progressBar(stdout) : NO_PROGRESS;
    const faults: StorageFault[] = [];
    let [steps, states, found] = [0n, 0n, 0];
    try {
      for await (const response of client.admin.verifyDatabase({}, { signal })) {
        [steps, states] = [response.doneSteps, response.doneStates];
        progress.show(Number(steps + states), Number(response.totalSteps + response.totalStates));
        found += response.faults.length;
        // A damaged disk can have any number of faults.
        faults.push(...response.faults.slice(0, MOST_SHOWN - faults.length));
      }
    } finally {
      progress.stop();
    }
    const text = flags.json
      ? JSON.stringify({ steps: `${steps}`, states: `${states}`, found, faults: faults.map(asJson) })
      : [...faultLines(cli, faults), `Read ${steps} steps and ${states} states: ${summary(found)}.`].join('\n');
    await write(stdout, `${text}\n`);
    if (found > 0) throw new CliError('The database is damaged: see "Verification" in docs/operations.md.');
  });
}

const MOST_SHOWN = 1000;

function summary(found: number): string {
  if (found === 0) return 'no faults';
  const shown = found > MOST_SHOWN ? ` (the first ${MOST_SHOWN} are shown)` : '';
  return `${found} ${found === 1 ? 'fault' : 'faults'}${shown}`;
}

function faultLines(cli: CliContext, faults: readonly StorageFault[]): string[] {
  const paint = paintFor(cli.stdout, cli.env);
  return faults.map(({ check, namespace, message }) => {
    const place = namespace === 'default' ? '' : `${namespace}: `;
    return `${paint.red(StorageCheck[check].padEnd(NAME_COLUMNS))} ${place}${message}`;
  });
}

const NAME_COLUMNS = 'REFERENCES'.length;

function asJson(fault: StorageFault) {
  return toJson(StorageFaultSchema, fault, JSON_FORM);
}
