import { constants } from 'node:fs';
import { copyFile, mkdir, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Command } from 'commander';
import type { Config } from '../config/config.ts';
import { StartError } from '../start_error.ts';
import { configOfDatabase } from './config_options.ts';
import { type CliContext, CliError, UsageError } from './context.ts';
import { valueJson } from './json_text.ts';
import { createLogger } from './logging.ts';
import { createFile, fileOf } from './new_file.ts';
import { openProgress } from './progress_bar.ts';
import { write } from './server_access.ts';

interface RestoreFlags {
  readonly database: string;
  readonly json?: true;
}

const DESCRIPTION =
  'Restore a backup of an SQLite database: copy it to a new place, and verify it there. An existing database is not replaced. ' +
  'The backup itself is not changed. A backup of an older version is migrated to this version.';

const EXAMPLES = `
Example:
  anabranch restore backup.db --database sqlite:.anabranch/data.db`;

/** Creates the command that restores a backup. */
export function restoreCommand(cli: CliContext): Command {
  return new Command('restore')
    .description(DESCRIPTION)
    .argument('<FILE>', 'a file that `anabranch backup` has written')
    .requiredOption('--database <URL>', 'sqlite:PATH of the database to create')
    .option('--json', 'print the result as JSON')
    .addHelpText('after', EXAMPLES)
    .action((file: string, flags: RestoreFlags) => restore(cli, file, flags));
}

async function restore(cli: CliContext, file: string, flags: RestoreFlags): Promise<void> {
  const source = fileOf(cli, file);
  if (!(await exists(source))) throw new UsageError(`${file} does not exist.`);
  const config = configOf(cli, flags.database);
  const { path } = config.database;
  // SQLite would apply these files to the restored database.
  for (const rest of [`${path}-wal`, `${path}-journal`]) {
    if (await exists(rest))
      throw new CliError(`${rest} belongs to another database: remove it, or name another place.`);
  }
  await mkdir(dirname(path), { recursive: true });
  const checked = await createFile(path, async (part) => {
    await copyFile(source, part, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE);
    try {
      return await verify(cli, part, flags);
    } catch (error) {
      throw error instanceof StartError ? refused(error, file) : error;
    } finally {
      for (const rest of REST) await rm(`${part}${rest}`, { force: true });
    }
  });
  const text = flags.json
    ? valueJson({ file, database: path, ...checked })
    : `${path} has the data of ${file}: ${checked.steps} steps and ${checked.states} states, all intact.`;
  await write(cli.stdout, `${text}\n`);
}

/** Files that opening a database creates next to it. */
const REST = ['-wal', '-shm', '.lock', '.holder'];

function configOf(cli: CliContext, database: string): Config & { readonly database: { readonly path: string } } {
  const config = configOfDatabase(cli, database);
  if (config.database.engine === 'sqlite') return { ...config, database: config.database };
  throw new UsageError('--database is a Postgres: restore its dumps with pg_restore or psql (docs/operations.md).');
}

async function verify(
  cli: CliContext,
  part: string,
  flags: RestoreFlags,
): Promise<{ readonly steps: string; readonly states: string }> {
  const config = configOf(cli, `sqlite:${part}`);
  const { verifyStore } = await import('../server.ts');
  using progress = openProgress(cli, flags);
  let [steps, states] = ['0', '0'];
  for await (const { faults, ...at } of verifyStore(config, { logger: createLogger(cli, config) })) {
    cli.signal.throwIfAborted();
    const [fault] = faults;
    if (fault !== undefined) {
      throw new CliError(`The backup is damaged, and was not restored: ${fault.message}. Use another backup.`);
    }
    progress?.show(Number(at.doneSteps + at.doneStates), Number(at.totalSteps + at.totalStates));
    [steps, states] = [`${at.doneSteps}`, `${at.doneStates}`];
  }
  return { steps, states };
}

/** The message of the error names the copy, and advises to choose another database. */
function refused({ cause, message }: StartError, file: string): CliError {
  const fault = cause instanceof Error ? cause.cause : undefined;
  const why = fault instanceof Error ? `${fault.message}.` : message;
  return new UsageError(`${file} was not restored: ${why} Use another backup.`, { cause });
}

async function exists(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined)) !== undefined;
}
