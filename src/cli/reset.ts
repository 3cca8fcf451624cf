import { Command } from 'commander';
import { describeDatabase } from '../config/config.ts';
import { configOfDatabase } from './config_options.ts';
import { confirmed } from './confirmation.ts';
import { type CliContext, CliError } from './context.ts';
import { write } from './server_access.ts';

interface ResetFlags {
  readonly database: string;
  readonly yes?: true;
}

const DESCRIPTION =
  'Delete everything in a database: the SQLite file, or the schema "anabranch" in Postgres. Asks first. Refuses while a server uses the ' +
  'database. There is no way back but a backup.';

const EXAMPLES = `
Examples:
  anabranch backup before.db && anabranch reset --database sqlite:.anabranch/data.db
  anabranch reset --database postgres://localhost/anabranch --yes`;

/** Creates the command that deletes a database. */
export function resetCommand(cli: CliContext): Command {
  return new Command('reset')
    .description(DESCRIPTION)
    .requiredOption('--database <URL>', 'sqlite:PATH or postgres://…')
    .option('--yes', 'do not ask')
    .addHelpText('after', EXAMPLES)
    .action((flags: ResetFlags) => reset(cli, flags));
}

async function reset(cli: CliContext, flags: ResetFlags): Promise<void> {
  const config = configOfDatabase(cli, flags.database);
  const named = describeDatabase(config);
  for (const warning of config.warnings) await write(cli.stderr, `anabranch: ${warning}\n`);
  if (flags.yes !== true && !(await confirmed(cli, `everything in ${named}`)))
    throw new CliError('Nothing was deleted.');
  const { deleteDatabase } = await import('../server.ts');
  await deleteDatabase(config);
  await write(cli.stdout, `Deleted everything in ${named}.\n`);
}
