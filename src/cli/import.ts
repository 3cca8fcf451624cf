import { type FileHandle, open } from 'node:fs/promises';
import { Command } from 'commander';
import { type ImportArchiveResponse, ImportArchiveResponseSchema } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { type CliContext, UsageError } from './context.ts';
import { messageJson } from './json_text.ts';
import { fileOf } from './new_file.ts';
import { openProgress } from './progress_bar.ts';
import { addServerOptions, type ServerFlags, withServer, write } from './server_access.ts';

interface ImportFlags extends ServerFlags {
  readonly json?: true;
}

const DESCRIPTION =
  'Import a file that `anabranch export` has written. Each trajectory is imported whole or not at all. What is stored ' +
  'already is skipped, so an interrupted import can be repeated.';

const EXAMPLES = `
Examples:
  anabranch import all.tar.zst
  anabranch import all.tar.zst --database sqlite:.anabranch/data.db`;

/** Bytes of one message. */
const CHUNK_BYTES = 256 * 1024;

/** Creates the command that imports an archive. */
export function importCommand(cli: CliContext): Command {
  const command = new Command('import')
    .description(DESCRIPTION)
    .argument('<FILE>', 'a file that `anabranch export` has written')
    .option('--json', 'print the result as JSON');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((file: string, flags: ImportFlags) => importFrom(cli, file, flags));
}

async function importFrom(cli: CliContext, file: string, flags: ImportFlags): Promise<void> {
  await using source = await open(fileOf(cli, file), 'r').catch((cause: Error) => {
    throw new UsageError(`${file} cannot be read: ${cause.message}.`, { cause });
  });
  await withServer(cli, flags, async ({ client }) => {
    const imported = await client.admin.importArchive(chunksOf(cli, source, flags), { signal: cli.signal });
    const text = flags.json ? messageJson(ImportArchiveResponseSchema, imported) : linesOf(imported).join('\n');
    await write(cli.stdout, `${text}\n`);
  });
}

async function* chunksOf(
  cli: CliContext,
  source: FileHandle,
  flags: ImportFlags,
): AsyncGenerator<{ chunk: Uint8Array }> {
  const { size } = await source.stat();
  using progress = openProgress(cli, flags, 'bytes');
  for (let at = 0; at < size; ) {
    const { bytesRead, buffer } = await source.read(Buffer.alloc(CHUNK_BYTES), 0, CHUNK_BYTES, at);
    if (bytesRead === 0) return;
    at += bytesRead;
    yield { chunk: buffer.subarray(0, bytesRead) };
    progress?.show(at, size);
  }
}

function linesOf({ trajectories, steps, runs, rollouts, presentTrajectories, leftOutIds }: ImportArchiveResponse) {
  const lines = [
    `Imported ${trajectories} trajectories with ${steps} steps, ${runs} runs and ${rollouts} rollouts. ${presentTrajectories} trajectories were stored already.`,
  ];
  if (leftOutIds.length > 0)
    lines.push(`Left out, because they were deleted during the export: ${leftOutIds.join(', ')}.`);
  return lines;
}
