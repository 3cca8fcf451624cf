import { create, toJson } from '@bufbuild/protobuf';
import { Command } from 'commander';
import { StorageCheck, type StorageFault, StorageFaultSchema } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { counted, JSON_FORM, paintFor, printable, valueJson } from './columns.ts';
import { createLogger } from './config_options.ts';
import { type CliContext, CliError } from './context.ts';
import { openProgress } from './progress.ts';
import { addServerOptions, configOfExisting, type ServerFlags, withServerOnExisting, write } from './server_access.ts';

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
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((flags: VerifyFlags) => verify(cli, flags));
}

async function verify(cli: CliContext, flags: VerifyFlags): Promise<void> {
  const result =
    flags.database === undefined
      ? await withServerOnExisting(cli, flags, ({ client }) =>
          collect(cli, flags, client.admin.verifyDatabase({}, { signal: cli.signal })),
        )
      : await verifyUnserved(cli, flags);
  const { steps, states, found, faults } = result;
  const text = flags.json
    ? valueJson({ steps: `${steps}`, states: `${states}`, found, faults: faults.map(asJson) })
    : [
        ...faultLines(cli, faults),
        `Read ${counted(steps, 'step')} and ${counted(states, 'state')}: ${summary(found)}.`,
      ].join('\n');
  await write(cli.stdout, `${text}\n`);
  if (found > 0) throw new CliError('The database is damaged: see "Verification" in docs/operations.md.');
}

/** Without a server, so that nothing in a damaged database changes. */
async function verifyUnserved(cli: CliContext, flags: VerifyFlags): Promise<Result> {
  const config = configOfExisting(cli, flags.database ?? '');
  for (const warning of config.warnings) await write(cli.stderr, `anabranch: ${warning}\n`);
  const { verifyStore } = await import('../server.ts');
  return collect(cli, flags, verifyStore(config, { logger: createLogger(cli, config) }));
}

interface Result {
  readonly steps: bigint;
  readonly states: bigint;
  readonly found: number;
  /** The first ones: a damaged disk can have any number of faults. */
  readonly faults: readonly Fault[];
}

type Fault = Pick<StorageFault, 'namespace' | 'message'> & { readonly check: StorageCheck | keyof typeof StorageCheck };

interface VerificationPart {
  readonly doneSteps: bigint;
  readonly totalSteps: bigint;
  readonly doneStates: bigint;
  readonly totalStates: bigint;
  readonly faults: readonly Fault[];
}

async function collect(cli: CliContext, flags: VerifyFlags, parts: AsyncIterable<VerificationPart>): Promise<Result> {
  using progress = openProgress(cli, flags);
  const faults: Fault[] = [];
  let [steps, states, found] = [0n, 0n, 0];
  for await (const part of parts) {
    cli.signal.throwIfAborted();
    [steps, states] = [part.doneSteps, part.doneStates];
    progress?.show(Number(steps + states), Number(part.totalSteps + part.totalStates));
    found += part.faults.length;
    faults.push(...part.faults.slice(0, MOST_SHOWN - faults.length));
  }
  return { steps, states, found, faults };
}

const MOST_SHOWN = 1000;

function summary(found: number): string {
  if (found === 0) return 'no faults';
  const shown = found > MOST_SHOWN ? ` (the first ${MOST_SHOWN} are shown)` : '';
  return counted(found, 'fault') + shown;
}

function faultLines(cli: CliContext, faults: readonly Fault[]): string[] {
  const paint = paintFor(cli.stdout, cli.env);
  return faults.map(({ check, namespace, message }) => {
    const place = namespace === 'default' || namespace === '' ? '' : `${namespace}: `;
    return `${paint.red(checkName(check).padEnd(NAME_COLUMNS))} ${place}${printable(message)}`;
  });
}

const NAME_COLUMNS = 'REFERENCES'.length;

function asJson({ check, ...fault }: Fault) {
  return toJson(
    StorageFaultSchema,
    create(StorageFaultSchema, { ...fault, check: StorageCheck[checkName(check)] }),
    JSON_FORM,
  );
}

/** The server sends numbers, and the store names. */
function checkName(check: Fault['check']): keyof typeof StorageCheck {
  return typeof check === 'string' ? check : (StorageCheck[check] as keyof typeof StorageCheck);
}
