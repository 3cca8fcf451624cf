import { readFile, writeFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { Command } from 'commander';
import { type AnabranchClient, resolveStep, type StepReference } from '../client/index.ts';
import { findPageFile } from '../page.ts';
import { type CliContext, CliError } from './context.ts';
import { createFile } from './new_file.ts';
import { Recording } from './page_file/recording.ts';
import { addExperimentOption, findRun, ofTrajectory } from './references.ts';
import { addServerOptions, type ServerFlags, withServerOnExisting, write } from './server_access.ts';
import { readTree } from './tree.ts';

interface PageFlags extends ServerFlags {
  readonly output: string;
  readonly experiment?: string;
  readonly withStates?: true;
  readonly alone?: true;
}

/** Browsers open larger files slowly. */
const MOST_BYTES = 32 * 1024 * 1024;

const EXAMPLES = `
Examples:
  anabranch page 0199f3a2-7c11-7d2e-8a4b-0123456789ab -o tree.html
  anabranch page 0199f3a2-7c11-7d2e-8a4b-0123456789ab@120 -o step.html --with-states    begins at step 120
  anabranch page main -o run.html                                                       a run with its rollouts`;

/** Creates the command that writes the page and its data into one file. */
export function pageCommand(cli: CliContext): Command {
  const command = new Command('page')
    .description(
      'Write one HTML file of at most 32 MiB that shows a tree or a run as the page does. It opens from disk, without a server, and loads nothing.',
    )
    .argument(
      '<TRAJECTORY|RUN>',
      'id of any trajectory of a tree (with @STEP or @TAG: begin there), or id or name of a run',
    )
    .requiredOption('-o, --output <FILE>', 'the file to create; an existing one is not replaced')
    .option('--with-states', 'include states, and contents that are stored as states, of at most 256 KiB each')
    .option('--alone', 'only this trajectory and its ancestors, instead of its tree');
  addExperimentOption(command);
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((argument: string, flags: PageFlags) => writePage(cli, argument, flags));
}

async function writePage(cli: CliContext, argument: string, flags: PageFlags): Promise<void> {
  const template = await readTemplate();
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const bytes = await createFile(resolve(cli.cwd, flags.output), async (part) => {
      // Base64 has four bytes for three.
      const limit = Math.floor(((MOST_BYTES - template.length - 1024) * 3) / 4);
      const recording = new Recording(client, { signal: cli.signal, withStates: flags.withStates === true, limit });
      const first =
        (await ofTrajectory(client, argument, (reference) => recordTree(client, recording, reference, flags))) ??
        (await recordRun(cli, client, recording, { argument, experiment: flags.experiment }));
      const recorded = (await recording.end()).toString('base64');
      const data = `<script type="text/plain" id="recorded" data-first="${first}">${recorded}</script>`;
      const html = template.replace('<!-- recorded -->', () => data);
      await writeFile(part, html, { flag: 'wx' });
      return Buffer.byteLength(html);
    });
    await write(cli.stdout, `${flags.output} has ${(bytes / 1024).toFixed(0)} KiB. A browser opens it from disk.\n`);
  });
}

/** Returns the page without data. */
async function readTemplate(): Promise<string> {
  const file = findPageFile('file/index.html');
  if (file === undefined) {
    throw new CliError(
      'The page is not built. `npm install && npm run build:page` in the folder of Anabranch builds it.',
    );
  }
  return gunzipSync(await readFile(file)).toString();
}

/** Returns what the page shows first. */
async function recordTree(
  client: AnabranchClient,
  recording: Recording,
  reference: StepReference,
  { alone }: PageFlags,
): Promise<string> {
  const { trajectoryId } = reference;
  const nodes = await readTree(client, trajectoryId);
  const byId = new Map(nodes.map((node) => [node.trajectory?.id ?? '', node]));
  const treeId = byId.get(trajectoryId)?.trajectory?.treeId ?? '';
  const lineage = [];
  for (let node = byId.get(trajectoryId); node !== undefined; node = byId.get(node.trajectory?.parentId ?? '')) {
    lineage.unshift(node);
  }
  const step = await resolveStep(client, reference);
  await recording.addTrajectories(alone ? lineage : nodes);
  return `/trees/${treeId}?at=${trajectoryId}${step === undefined ? '' : `&amp;step=${step}`}`;
}

async function recordRun(
  cli: CliContext,
  client: AnabranchClient,
  recording: Recording,
  named: { readonly argument: string; readonly experiment: string | undefined },
): Promise<string> {
  const { id, parentId, mainTrajectoryId } = await findRun(cli, client, named);
  await recording.addRun(id, parentId);
  if (mainTrajectoryId !== '') await recording.addTrajectories(await readTree(client, mainTrajectoryId), id);
  return `/runs/${id}`;
}
