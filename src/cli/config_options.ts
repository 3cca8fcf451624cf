import type { Command } from 'commander';
import { type Logger, pino } from 'pino';
import { build as pretty } from 'pino-pretty';
import { type Config, loadConfig } from '../config/config.ts';
import { CONFIG_TABLE } from '../config/table.ts';
import type { CliContext } from './context.ts';

/**
 * Adds flags of the configuration table, all of them or only the named ones (`--database`), with their defaults in the
 * help.
 */
export function addConfigOptions(command: Command, names?: readonly string[]): Command {
  for (const { flag, default: preset, name, doc, list } of CONFIG_TABLE) {
    if (flag === undefined) continue;
    const [long = '', placeholder] = flag.split(' ');
    if (names !== undefined && !names.includes(long)) continue;
    const definition = placeholder === undefined ? long : `${long} <${placeholder}>`;
    const otherwise = preset === undefined ? name : `${name}, default ${preset}`;
    const text = `${doc.replaceAll('`', '')} (${otherwise})`;
    const option = command.createOption(definition, text);
    // Commander takes --no-migrate for the opposite of a flag --migrate.
    option.negate = false;
    if (list) option.argParser((value: string, before: readonly string[] = []) => [...before, value]);
    command.addOption(option);
  }
  return command;
}

/**
 * Returns the configuration for a database that the command line names. The environment does not count. Errors:
 * ConfigError.
 */
export function configOfDatabase(cli: CliContext, database: string): Config {
  return loadConfig({ env: {}, flags: { database }, cwd: cli.cwd, readFile: () => undefined });
}

/** Returns the configuration of a command. Errors: ConfigError. */
export function configOf(cli: CliContext, flags: Readonly<Record<string, unknown>>): Config {
  return loadConfig({ env: cli.env, flags, cwd: cli.cwd, fileLimit: cli.fileLimit });
}

/** Creates the logger of a command. The log goes to stderr; stdout is for the command's results. */
export function createLogger(cli: CliContext, config: Pick<Config, 'logLevel' | 'logFormat'>): Logger {
  const isTerminal = cli.stderr.isTTY === true;
  const { logLevel: level, logFormat = isTerminal ? 'pretty' : 'json' } = config;
  if (logFormat === 'json') return pino({ level, ...JSON_LINES }, cli.stderr);
  const colorize = isTerminal && !cli.env.NO_COLOR;
  const lines = pretty({ colorize, ignore: 'pid,hostname', destination: cli.stderr, sync: true });
  return pino({ level }, lines);
}

/** Times and levels as words, which all collectors of logs read. */
const JSON_LINES = {
  base: null,
  timestamp: pino.stdTimeFunctions.isoTime,
  formatters: { level: (level: string) => ({ level }) },
} as const;
