import { createHash } from 'node:crypto';
import { open } from 'node:fs/promises';
import { Command } from 'commander';
import type { AnabranchClient } from '../client/index.ts';
import { type CliContext, CliError } from './context.ts';
import { valueJson } from './json_text.ts';
import { createFile, fileOf } from './new_file.ts';
import { openProgress } from './progress_bar.ts';
import { addServerOptions, commandPrefix, type ServerFlags, withServerOnExisting, write } from './server_access.ts';

interface BackupFlags extends ServerFlags {
  readonly json?: true;
}

const DESCRIPTION =
  'Copy the SQLite database of a running server into a new file, while writers continue. The copy is of one moment. ' +
  'The server needs room for the copy next to its database. For Postgres, use pg_dump.';

const EXAMPLES = `
Examples:
  anabranch backup backup.db
  anabranch restore backup.db --database sqlite:restored.db`;

/** Creates the command that backs up the database of a server. */
export function backupCommand(cli: CliContext): Command {
  const command = new Command('backup')
    .description(DESCRIPTION)
    .argument('<FILE>', 'the file to create; an existing one is not replaced')
    .option('--json', 'print the result as JSON');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((file: string, flags: BackupFlags) => backUp(cli, file, flags));
}

async function backUp(cli: CliContext, file: string, flags: BackupFlags): Promise<void> {
  const path = fileOf(cli, file);
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const copy = await createFile(path, (part) => download(cli, client, part, flags));
    const text = flags.json
      ? valueJson({ file, ...copy })
      : `${file} has the database, ${copy.bytes} bytes. \`${commandPrefix(cli)} restore ${file} --database sqlite:PATH\` restores it.`;
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
