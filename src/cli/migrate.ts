import { Command } from 'commander';
import { addConfigOptions, configOf } from './config_options.ts';
import type { CliContext } from './context.ts';
import { valueJson } from './json_text.ts';
import { createLogger } from './logging.ts';

/** Creates the command that migrates a database without serving it. `serve` migrates by itself. */
export function migrateCommand(cli: CliContext): Command {
  const command = new Command('migrate').description(
    'Create the database, or migrate it to this version. The server does the same when it starts.',
  );
  return addConfigOptions(command, ['--database', '--log-level', '--log-format'])
    .option('--json', 'print the result as one line of JSON')
    .action(async (flags: Readonly<Record<string, unknown>>) => {
      const config = configOf(cli, flags);
      const logger = createLogger(cli, config);
      for (const warning of config.warnings) logger.warn(warning);
      // Loaded on demand, so that other commands start fast.
      const { migrateStore } = await import('../server.ts');
      const { storeDescription: store } = await migrateStore(config, { logger });
      const text = flags.json === true ? valueJson({ event: 'migrated', store }) : `${store} is up to date.`;
      cli.stdout.write(`${text}\n`);
    });
}
