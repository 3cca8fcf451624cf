import { type FileHandle, open } from 'node:fs/promises';
import { Command, Option } from 'commander';
import { type ImportArchiveResponse, ImportArchiveResponseSchema } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { counted, messageJson, valueJson } from './columns.ts';
import { type CliContext, UsageError } from './context.ts';
import { createFile, fileOf } from './new_file.ts';
import { openProgress } from './progress.ts';
import { addExperimentOption, findRun } from './references.ts';
import {
  addServerOptions,
  commandPrefix,
  type ServerFlags,
  withServer,
  withServerOnExisting,
  write,
} from './server_access.ts';

interface ExportFlags extends ServerFlags {
  readonly run?: string;
  readonly experiment?: string;
  readonly trajectory?: string;
  readonly json?: true;
}

const EXPORT_DESCRIPTION =
  'Export everything, a run or a trajectory into a new file, while writers continue. `anabranch import` reads it, on SQLite ' +
  'and on Postgres. docs/archive.md describes the file.';

const EXPORT_EXAMPLES = `
Examples:
  anabranch export all.tar.zst
  anabranch export run.tar.zst --run main`;

/** Creates the command that exports an archive. */
export function exportCommand(cli: CliContext): Command {
  const command = new Command('export')
    .description(EXPORT_DESCRIPTION)
    .argument('<FILE>', 'the file to create; an existing one is not replaced')
    .addOption(
      new Option('--run <RUN>', 'export this run, by id or name, with its trajectories and rollouts').conflicts(
        'trajectory',
      ),
    )
    .option('--trajectory <ID>', 'export this trajectory with its ancestors')
    .option('--json', 'print the result as JSON');
  return addServerOptions(addExperimentOption(command))
    .addHelpText('after', EXPORT_EXAMPLES)
    .action((file: string, flags: ExportFlags) => exportTo(cli, file, flags));
}

async function exportTo(cli: CliContext, file: string, flags: ExportFlags): Promise<void> {
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const { run, experiment, trajectory: trajectoryId = '' } = flags;
    const runId = run === undefined ? '' : (await findRun(cli, client, { argument: run, experiment })).id;
    const what = { runId, trajectoryId };
    const { steps, bytes } = await createFile(fileOf(cli, file), (part) => download(cli, client, part, what, flags));
    const text = flags.json
      ? valueJson({ file, steps: `${steps}`, bytes })
      : `${file} has ${counted(steps, 'step')}, ${counted(bytes, 'byte')}. \`${commandPrefix(cli)} import ${file}\` imports it.`;
    await write(cli.stdout, `${text}\n`);
  });
}

async function download(
  cli: CliContext,
  client: AnabranchClient,
  part: string,
  what: { readonly runId: string; readonly trajectoryId: string },
  flags: ExportFlags,
): Promise<{ readonly steps: bigint; readonly bytes: number }> {
  const { signal } = cli;
  await using file = await open(part, 'wx', 0o600);
  using progress = openProgress(cli, flags, 'steps');
  const total = progress === undefined ? 0 : await countSteps(client, what, signal);
  let [steps, bytes] = [0n, 0];
  for await (const piece of client.admin.exportArchive(what, { signal })) {
    for (let at = 0; at < piece.chunk.length; ) at += (await file.write(piece.chunk, at)).bytesWritten;
    bytes += piece.chunk.length;
    steps = piece.steps;
    progress?.show(Number(steps), Math.max(total, Number(steps)));
  }
  return { steps, bytes };
}

/** For the bar. Ancestors of a run's trajectories that are outside of it are not counted. */
async function countSteps(
  { admin, trajectories }: AnabranchClient,
  { runId, trajectoryId }: { readonly runId: string; readonly trajectoryId: string },
  signal: AbortSignal,
): Promise<number> {
  if (trajectoryId !== '') {
    const { trajectory } = await trajectories.getTrajectory({ trajectoryId }, { signal });
    return Number(trajectory?.nextStepNumber ?? 0n);
  }
  if (runId === '') return Number((await admin.getDatabaseStats({}, { signal })).steps);
  let steps = 0n;
  for (let pageToken = ''; ; ) {
    const page = await trajectories.listTrajectories({ runId, pageSize: 1000, pageToken }, { signal });
    for (const { nextStepNumber, branchPoint = -1n } of page.trajectories) steps += nextStepNumber - branchPoint - 1n;
    pageToken = page.nextPageToken;
    if (pageToken === '') return Number(steps);
  }
}

interface ImportFlags extends ServerFlags {
  readonly json?: true;
}

const IMPORT_DESCRIPTION =
  'Import a file that `anabranch export` has written. Each trajectory is imported whole or not at all. What is stored ' +
  'already is skipped, so an interrupted import can be repeated.';

const IMPORT_EXAMPLES = `
Examples:
  anabranch import all.tar.zst
  anabranch import all.tar.zst --database sqlite:.anabranch/data.db`;

/** Bytes of one message. */
const CHUNK_BYTES = 256 * 1024;

/** Creates the command that imports an archive. */
export function importCommand(cli: CliContext): Command {
  const command = new Command('import')
    .description(IMPORT_DESCRIPTION)
    .argument('<FILE>', 'a file that `anabranch export` has written')
    .option('--json', 'print the result as JSON');
  return addServerOptions(command)
    .addHelpText('after', IMPORT_EXAMPLES)
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
    `Imported ${counted(trajectories, 'trajectory')} with ${counted(steps, 'step')}, ${counted(runs, 'run')} and ${counted(rollouts, 'rollout')}. Stored already: ${counted(presentTrajectories, 'trajectory')}.`,
  ];
  if (leftOutIds.length > 0)
    lines.push(`Left out, because they were deleted during the export: ${leftOutIds.join(', ')}.`);
  return lines;
}
