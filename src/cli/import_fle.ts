import { resolve } from 'node:path';
import { Command } from 'commander';
import { loadConfig } from '../config/config.ts';
import { mayHoldPassword, schemeOf, scrubUrl } from '../config/scrub_url.ts';
import { ConfigError } from '../config/values.ts';
import { type ImportedVersion, importFle } from '../fle/import.ts';
import { openFleSource } from '../fle/open.ts';
import { FleImportError, type FleSource } from '../fle/source.ts';
import { paintFor } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import { barDisplay, importTable, NO_DISPLAY } from './import_fle_display.ts';
import { valueJson } from './json_text.ts';
import {
  type Access,
  addServerOptions,
  commandPrefix,
  DEFAULT_ADDRESS,
  FIRST_ANSWER,
  type ServerFlags,
  withServer,
  withServerOnExisting,
  write,
} from './server_access.ts';

interface ImportFlags extends ServerFlags {
  readonly experiment: string;
  readonly dryRun?: true;
  readonly json?: true;
}

const DESCRIPTION =
  'Import a database of the Factorio Learning Environment (FLE): a run for each version, a trajectory for each instance and process, branches ' +
  'where programs share a parent. The source is only read. Run the command again to import what was added since, or to continue an import ' +
  'that was interrupted: nothing is imported twice.';

const EXAMPLES = `
Examples:
  anabranch import-fle .fle/data.db
  anabranch import-fle postgres://fle_user:fle123@localhost:5432/fle_database --address 127.0.0.1:50051
  anabranch import-fle .fle/data.db --experiment lab-play --dry-run
  anabranch import-fle .fle/data.db --database sqlite:.anabranch/data.db --json`;

export function importFleCommand(cli: CliContext): Command {
  const command = new Command('import-fle')
    .description(DESCRIPTION)
    .argument('<SOURCE>', "FLE's SQLite file, or a URL such as postgres://USER:PASSWORD@HOST:PORT/DATABASE")
    .option('-e, --experiment <NAME>', 'experiment of the runs; created if it does not exist', 'fle')
    .option('--dry-run', 'print what would be imported, and write nothing')
    .option('--json', 'print the result as JSON');
  return addServerOptions(command, `the server to import into (default: ${DEFAULT_ADDRESS})`)
    .addHelpText('after', EXAMPLES)
    .action((source: string, flags: ImportFlags) => runImport(cli, source, flags));
}

async function runImport(cli: CliContext, sourceText: string, flags: ImportFlags): Promise<void> {
  if (flags.experiment === '') throw new CliError('--experiment is "": expected a name.', { exitCode: 2 });
  const opened = await explained(cli, () => openSource(cli, sourceText));
  try {
    const withAccess = flags.dryRun ? withServerOnExisting : withServer;
    await withAccess(cli, flags, (access) => explained(cli, () => importFrom(cli, access, opened, flags)));
  } finally {
    await opened.close();
  }
}

async function openSource(cli: CliContext, text: string): Promise<FleSource> {
  if (schemeOf(text) === '') {
    if (mayHoldPassword(text)) throw invalidSource(text);
    return openFleSource({ engine: 'sqlite', path: resolve(cli.cwd, text) }, text);
  }
  try {
    const { database } = loadConfig({ env: {}, flags: { database: text }, cwd: cli.cwd, readFile: () => undefined });
    return await openFleSource(database, scrubUrl(text));
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    throw invalidSource(text);
  }
}

/** Prints no more of the text than its scheme: it may hold a password. */
function invalidSource(text: string): CliError {
  const scheme = schemeOf(text);
  const shown = scheme === '' ? 'is not a URL (not shown: it may hold a password)' : `begins with "${scheme}"`;
  return new CliError(
    `SOURCE ${shown}: expected a SQLite file or postgres://USER:PASSWORD@HOST:PORT/DATABASE with each part percent-encoded.`,
    { exitCode: 2 },
  );
}

async function importFrom(
  cli: CliContext,
  { client, flags: serverFlags }: Access,
  source: FleSource,
  flags: ImportFlags,
) {
  const { stdout, signal } = cli;
  // Checks that the server answers, because reading the source can take minutes.
  await client.runs.listExperiments({ pageSize: 1 }, FIRST_ANSWER);
  const display = stdout.isTTY && !flags.json ? barDisplay(stdout) : NO_DISPLAY;
  const options = { source, experimentName: flags.experiment, dryRun: flags.dryRun === true, signal };
  let versions: readonly ImportedVersion[];
  try {
    versions = await importFle(client, { ...options, onProgress: display.show });
  } finally {
    display.stop();
  }
  const text = flags.json ? jsonOf(source, flags, versions) : pageOf(cli, versions, { ...flags, serverFlags });
  await write(stdout, `${text}\n`);
}

function jsonOf({ description }: FleSource, { experiment, dryRun }: ImportFlags, versions: readonly ImportedVersion[]) {
  const sum = (of: (version: ImportedVersion) => number) => versions.reduce((total, each) => total + of(each), 0);
  return valueJson({
    source: description,
    experiment,
    dryRun: dryRun === true,
    programs: sum(({ programs }) => programs),
    imported: sum(({ imported }) => imported),
    runs: versions,
  });
}

function pageOf(
  cli: CliContext,
  versions: readonly ImportedVersion[],
  { experiment, dryRun, serverFlags }: ImportFlags & { readonly serverFlags: string },
): string {
  if (versions.length === 0) return 'The source has no programs.';
  const paint = paintFor(cli.stdout, cli.env);
  const [head = '', ...lines] = importTable(versions);
  const name = /^[\w.-]+$/.test(experiment) ? experiment : JSON.stringify(experiment);
  const next = `\`${commandPrefix(cli)} runs -e ${name} ${serverFlags}\` lists the runs.`;
  return [paint.dim(head), ...lines, dryRun ? 'Nothing was written (--dry-run).' : next].join('\n');
}

/** Turns errors that the user can resolve into one line. */
async function explained<T>(cli: CliContext, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (cli.signal.aborted) throw new CliError('Interrupted. Run the command again to continue.', { cause: error });
    if (error instanceof FleImportError) throw new CliError(error.message, { cause: error });
    throw error;
  }
}
