import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { copyFile, mkdir, open, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Command } from 'commander';
import type { AnabranchClient } from '../client/index.ts';
import type { Config } from '../config/config.ts';
import { StartError } from '../start_error.ts';
import { counted, valueJson } from './columns.ts';
import { configOfDatabase, createLogger } from './config_options.ts';
import { type CliContext, CliError, UsageError } from './context.ts';
import { createFile, fileOf } from './new_file.ts';
import { openProgress } from './progress.ts';
import { addServerOptions, commandPrefix, type ServerFlags, withServerOnExisting, write } from './server_access.ts';

interface BackupFlags extends ServerFlags {
  readonly json?: true;
}

const BACKUP_DESCRIPTION =
  'Copy the SQLite database of a running server into a new file, while writers continue. The copy is of one moment. ' +
  'The server needs room for the copy next to its database. For Postgres, use pg_dump.';

const BACKUP_EXAMPLES = `
Examples:
  anabranch backup backup.db
  anabranch restore backup.db --database sqlite:restored.db`;

/** Creates the command that backs up the database of a server. */
export function backupCommand(cli: CliContext): Command {
  const command = new Command('backup')
    .description(BACKUP_DESCRIPTION)
    .argument('<FILE>', 'the file to create; an existing one is not replaced')
    .option('--json', 'print the result as JSON');
  return addServerOptions(command)
    .addHelpText('after', BACKUP_EXAMPLES)
    .action((file: string, flags: BackupFlags) => backUp(cli, file, flags));
}

async function backUp(cli: CliContext, file: string, flags: BackupFlags): Promise<void> {
  const path = fileOf(cli, file);
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const copy = await createFile(path, (part) => download(cli, client, part, flags));
    const text = flags.json
      ? valueJson({ file, ...copy })
      : `${file} has the database, ${counted(copy.bytes, 'byte')}. \`${commandPrefix(cli)} restore ${file} --database sqlite:PATH\` restores it.`;
    await write(cli.stdout, `${text}\n`);
  });
}

async function download(
  cli: CliContext,
  client: AnabranchClient,
  part: string,
  flags: BackupFlags,
): Promise<{ readonly bytes: number; readonly digest: string }> {
  await using file = await open(part, 'wx', 0o600);
  using progress = openProgress(cli, flags, 'bytes');
  const hasher = createHash('sha256');
  let [bytes, digest] = [0, ''];
  for await (const piece of client.admin.backupDatabase({}, { signal: cli.signal })) {
    for (let at = 0; at < piece.chunk.length; ) at += (await file.write(piece.chunk, at)).bytesWritten;
    hasher.update(piece.chunk);
    bytes += piece.chunk.length;
    digest = piece.digest;
    // Copied by the server, then received here.
    progress?.show(Number(piece.copiedBytes) + bytes, 2 * Number(piece.totalBytes));
  }
  if (digest === '' || hasher.digest('hex') !== digest) {
    throw new CliError('The copy did not arrive as the server sent it. Run the command again.');
  }
  return { bytes, digest };
}

interface RestoreFlags {
  readonly database: string;
  readonly json?: true;
}

const RESTORE_DESCRIPTION =
  'Restore a backup of an SQLite database: copy it to a new place, and verify it there. An existing database is not replaced. ' +
  'The backup itself is not changed. A backup of an older version is migrated to this version.';

const RESTORE_EXAMPLES = `
Example:
  anabranch restore backup.db --database sqlite:.anabranch/data.db`;

/** Creates the command that restores a backup. */
export function restoreCommand(cli: CliContext): Command {
  return new Command('restore')
    .description(RESTORE_DESCRIPTION)
    .argument('<FILE>', 'a file that `anabranch backup` has written')
    .requiredOption('--database <URL>', 'sqlite:PATH of the database to create')
    .option('--json', 'print the result as JSON')
    .addHelpText('after', RESTORE_EXAMPLES)
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
    : `${path} has the data of ${file}: ${counted(checked.steps, 'step')} and ${counted(checked.states, 'state')}, all intact.`;
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
