import { Command } from 'commander';
import type { Config } from '../config/config.ts';
import { PASSWORD_IN_FLAG } from '../config/database.ts';
import { counted, valueJson } from './columns.ts';
import { createLogger } from './config_options.ts';
import { type CliContext, CliError, UsageError } from './context.ts';
import { openProgress } from './progress.ts';
import { configOfExisting, configOfNamed, write } from './server_access.ts';

interface MigrateDataFlags {
  readonly from: string;
  readonly to: string;
  readonly namespace?: readonly string[];
  readonly json?: true;
}

const DESCRIPTION =
  'Copy all namespaces of a database into another one, of the same engine or the other, and compare each trajectory with its copy ' +
  'by digest. Both must not be served meanwhile. What the target has already is left as it is, so an interrupted copy can be ' +
  'repeated.';

const EXAMPLES = `
Examples:
  anabranch migrate-data --from sqlite:.anabranch/data.db --to postgres://localhost/anabranch
  PGPASSWORD=… anabranch migrate-data --from postgres://ann@db.example/anabranch --to sqlite:copy.db`;

/** Creates the command that copies a database. */
export function migrateDataCommand(cli: CliContext): Command {
  return new Command('migrate-data')
    .description(DESCRIPTION)
    .requiredOption('--from <URL>', 'sqlite:PATH or postgres://… of the database to copy')
    .requiredOption('--to <URL>', 'sqlite:PATH or postgres://… of the copy; it is created if it does not exist')
    .option('-n, --namespace <NAME...>', 'copy only these namespaces (default: all that have data)')
    .option('--json', 'print the result as JSON')
    .addHelpText('after', EXAMPLES)
    .action((flags: MigrateDataFlags) => migrateData(cli, flags));
}

async function migrateData(cli: CliContext, flags: MigrateDataFlags): Promise<void> {
  const from = configOfExisting(cli, flags.from, '--from');
  const to = configOfNamed(cli, flags.to, '--to');
  if (JSON.stringify(from.database) === JSON.stringify(to.database)) {
    throw new UsageError('--from and --to name the same database.');
  }
  for (const warning of [...warningsOf(from, '--from'), ...warningsOf(to, '--to')]) {
    await write(cli.stderr, `anabranch: ${warning}\n`);
  }
  const { namespaces, copied, verified } = await copy(cli, from, to, flags);
  const counts = {
    namespaces: namespaces.length,
    trajectories: copied.trajectories + copied.presentTrajectories,
    steps: copied.steps,
    states: copied.states,
    runs: copied.runs,
    rollouts: copied.rollouts,
    identical: verified.identicalTrajectories,
  };
  const text = flags.json
    ? valueJson(Object.fromEntries(Object.entries(counts).map(([name, count]) => [name, `${count}`])))
    : `Copied ${counted(counts.namespaces, 'namespace')}: ${counted(counts.trajectories, 'trajectory')} with ${counted(counts.steps, 'step')}, ${counted(counts.states, 'state')}, ${counted(counts.runs, 'run')} and ${counted(counts.rollouts, 'rollout')}. Equal in both databases: ${counted(counts.identical, 'trajectory')}.`;
  await write(cli.stdout, `${text}\n`);
  if (
    verified.identicalTrajectories !== counts.trajectories ||
    verified.trajectories > 0n ||
    verified.leftOut.length > 0
  ) {
    throw new CliError(
      'The copy differs from the database: it was written meanwhile, or the copy had other data before.',
    );
  }
}

/** Returns what was copied, and how it compares. */
async function copy(cli: CliContext, from: Config, to: Config, flags: MigrateDataFlags) {
  const { copyDatabase } = await import('../server.ts');
  using progress = openProgress(cli, flags, 'steps');
  let last: Awaited<ReturnType<ReturnType<typeof copyDatabase>['next']>>['value'] | undefined;
  try {
    for await (const at of copyDatabase(from, to, { logger: createLogger(cli, to), namespaces: flags.namespace })) {
      cli.signal.throwIfAborted();
      last = at;
      progress?.show(Number(at.doneSteps), Number(at.totalSteps));
    }
  } catch (error) {
    const { reason, message } = error as { readonly reason?: unknown; readonly message: string };
    throw typeof reason === 'string' ? new CliError(`${reason}: ${message}`, { cause: error }) : error;
  }
  if (last?.verified === undefined) throw new Error('the copy has no end');
  return { ...last, verified: last.verified };
}

/** This command does not read DATABASE_URL. Without a password in the URL, the driver of Postgres reads PGPASSWORD. */
function warningsOf({ warnings }: Config, flag: string): readonly string[] {
  return warnings.map((warning) =>
    warning === PASSWORD_IN_FLAG
      ? `${flag} holds a password, which every user of this machine can see in the list of processes: leave it out of the URL, and set PGPASSWORD instead.`
      : warning,
  );
}
