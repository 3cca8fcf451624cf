import { open } from 'node:fs/promises';
import { Command, Option } from 'commander';
import type { AnabranchClient } from '../client/index.ts';
import type { CliContext } from './context.ts';
import { valueJson } from './json_text.ts';
import { createFile, fileOf } from './new_file.ts';
import { openProgress } from './progress_bar.ts';
import { addServerOptions, commandPrefix, type ServerFlags, withServerOnExisting, write } from './server_access.ts';

interface ExportFlags extends ServerFlags {
  readonly run?: string;
  readonly trajectory?: string;
  readonly json?: true;
}

const DESCRIPTION =
  'Export everything, a run or a trajectory into a new file, while writers continue. `anabranch import` reads it, on SQLite ' +
  'and on Postgres. docs/archive.md describes the file.';

const EXAMPLES = `
Examples:
  anabranch export all.tar.zst
  anabranch export run.tar.zst --run 0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a`;

/** Creates the command that exports an archive. */
export function exportCommand(cli: CliContext): Command {
  const command = new Command('export')
    .description(DESCRIPTION)
    .argument('<FILE>', 'the file to create; an existing one is not replaced')
    .addOption(new Option('--run <ID>', 'export this run with its trajectories and rollouts').conflicts('trajectory'))
    .option('--trajectory <ID>', 'export this trajectory with its ancestors')
    .option('--json', 'print the result as JSON');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((file: string, flags: ExportFlags) => exportTo(cli, file, flags));
}

async function exportTo(cli: CliContext, file: string, flags: ExportFlags): Promise<void> {
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const { steps, bytes } = await createFile(fileOf(cli, file), (part) => download(cli, client, part, flags));
    const text = flags.json
      ? valueJson({ file, steps: `${steps}`, bytes })
      : `${file} has ${steps} steps, ${bytes} bytes. \`${commandPrefix(cli)} import ${file}\` imports it.`;
    await write(cli.stdout, `${text}\n`);
  });
}

async function download(
  cli: CliContext,
  client: AnabranchClient,
  part: string,
  flags: ExportFlags,
): Promise<{ readonly steps: bigint; readonly bytes: number }> {
  const { run: runId = '', trajectory: trajectoryId = '' } = flags;
  const { signal } = cli;
  await using file = await open(part, 'wx', 0o600);
  using progress = openProgress(cli, flags, 'steps');
  const total = progress === undefined ? 0 : await countSteps(client, { runId, trajectoryId }, signal);
  let [steps, bytes] = [0n, 0];
  for await (const piece of client.admin.exportArchive({ runId, trajectoryId }, { signal })) {
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
