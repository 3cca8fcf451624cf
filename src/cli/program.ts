import { Command, CommanderError } from 'commander';
import { ConfigError } from '../config/values.ts';
import { demoClientCommand, demoCommand } from '../demo/command.ts';
import { StartError } from '../start_error.ts';
import { packageVersion } from '../version.ts';
import { exportCommand, importCommand } from './archive.ts';
import { backupCommand, restoreCommand } from './backup.ts';
import { columnsOf, printableLines } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import { healthCommand } from './health.ts';
import { fitHelp } from './help.ts';
import { keysCommand } from './keys.ts';
import { migrateDataCommand } from './migrate_data.ts';
import { namespacesCommand } from './namespaces.ts';
import { pageCommand } from './page.ts';
import { pictureCommand } from './picture.ts';
import { resetCommand } from './reset.ts';
import { retentionCommand } from './retention.ts';
import { runCommand } from './run.ts';
import { runsCommand } from './runs.ts';
import { searchCommand } from './search.ts';
import { migrateCommand, serveCommand } from './serve.ts';
import { statsCommand } from './stats.ts';
import { stepsCommand, tailCommand } from './steps.ts';
import { tableCommand } from './table.ts';
import { treeCommand } from './tree.ts';
import { vacuumCommand } from './vacuum.ts';
import { verifyCommand } from './verify.ts';
import { watchCommand } from './watch.ts';

/** Creates the program with all its commands. */
function program(cli: CliContext): Command {
  return new Command('anabranch')
    .description('The trajectory store for agents: every step durable, every state a branch point.')
    .version(packageVersion())
    .addCommand(serveCommand(cli))
    .addCommand(migrateCommand(cli))
    .addCommand(healthCommand(cli))
    .addCommand(demoCommand(cli))
    .addCommand(demoClientCommand(cli), { hidden: true })
    .addCommand(runsCommand(cli))
    .addCommand(runCommand(cli))
    .addCommand(watchCommand(cli))
    .addCommand(treeCommand(cli))
    .addCommand(pictureCommand(cli))
    .addCommand(pageCommand(cli))
    .addCommand(stepsCommand(cli))
    .addCommand(tailCommand(cli))
    .addCommand(searchCommand(cli))
    .addCommand(tableCommand(cli))
    .addCommand(retentionCommand(cli))
    .addCommand(statsCommand(cli))
    .addCommand(verifyCommand(cli))
    .addCommand(keysCommand(cli))
    .addCommand(namespacesCommand(cli))
    .addCommand(backupCommand(cli))
    .addCommand(restoreCommand(cli))
    .addCommand(exportCommand(cli))
    .addCommand(importCommand(cli))
    .addCommand(migrateDataCommand(cli))
    .addCommand(vacuumCommand(cli))
    .addCommand(resetCommand(cli));
}

/** Runs one command line. Resolves with the exit code: 0 success, 1 failure, 2 invalid command line. */
export async function run(args: readonly string[], cli: CliContext): Promise<number> {
  const root = program(cli);
  for (const command of [root, ...root.commands, ...root.commands.flatMap((each) => each.commands)]) {
    command
      .exitOverride()
      .configureHelp({ minWidthToWrap: LEAST_HELP_COLUMNS })
      .configureOutput({
        writeOut: (text) => void cli.stdout.write(text.startsWith(EXAMPLES) ? fitHelp(text, columnsOf(cli)) : text),
        writeErr: (text) => void cli.stderr.write(printableLines(text)),
        outputError: (text, write) => write(withHint(withoutValues(text), command)),
        getOutHelpWidth: () => columnsOf(cli),
        getErrHelpWidth: () => cli.stderr.columns ?? 80,
      });
  }
  try {
    await root.parseAsync([...args], { from: 'user' });
    return 0;
  } catch (error) {
    return explain(error, cli);
  }
}

/** Columns that descriptions need beside the longest command or option, so that they are wrapped. */
const LEAST_HELP_COLUMNS = 30;

/** How the texts begin that commands add to their help. */
const EXAMPLES = '\nExamples:\n';

/** How other programs call where a server listens, or where it is. */
const PLACES = /^error: unknown option '(?:--port|-p|--host|--hostname|-H|--bind|--url|--server)'/u;

/** Adds the option that is meant to the message about one of another program. */
function withHint(message: string, { options }: Command): string {
  if (!PLACES.test(message)) return message;
  const own = ['--listen', '--address'].find((flag) => options.some(({ long }) => long === flag));
  const hint = own === undefined ? 'serve --listen HOST:PORT' : `${own} HOST:PORT`;
  return `${message.trimEnd()}: use ${hint}, for example ${own ?? 'serve --listen'} 127.0.0.1:50051\n`;
}

/** Removes what was typed in a wrong place from a message of commander: it may be a URL with a password. */
function withoutValues(message: string): string {
  const excess = /^error: too many arguments[\s\S]*? but got \d+/u.exec(message)?.[0];
  if (excess !== undefined) return `${excess}.\n`;
  const [, what = '', given = '', rest = ''] =
    /^(error: unknown (?:option|command)) '([\s\S]*?)'((?:\n\(Did you mean [^\n]*\))?\s*)$/u.exec(message) ?? [];
  if (what === '') return message;
  const [name] = given.split('=', 1);
  return `${what}${/^[\w-]+$/u.test(name ?? '') ? ` '${name}'` : ''}${rest}`;
}

function explain(error: unknown, cli: CliContext): number {
  // Commander has printed its message already.
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
  if (error instanceof ConfigError) return say(error.message, 2);
  if (error instanceof CliError) return say(error.message, error.exitCode);
  if (error instanceof StartError) return say(error.message, 1);
  const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
  return say(`Internal error.\n${text}`, 1);

  function say(message: string, code: number): number {
    cli.stderr.write(`${printableLines(message)}\n`);
    return code;
  }
}
