import { type Logger, pino } from 'pino';
import { build as pretty } from 'pino-pretty';
import type { Config } from '../config/config.ts';
import type { CliContext } from './context.ts';

/** Creates the logger of a command. The log goes to stderr; stdout is for the command's results. */
export function createLogger(cli: CliContext, config: Pick<Config, 'logLevel' | 'logFormat'>): Logger {
  if (config.logFormat === 'json') return pino({ level: config.logLevel }, cli.stderr);
  const colorize = cli.stderr.isTTY === true && !cli.env.NO_COLOR;
  const lines = pretty({ colorize, ignore: 'pid,hostname', destination: cli.stderr, sync: true });
  return pino({ level: config.logLevel }, lines);
}
