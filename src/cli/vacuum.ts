import { Command } from 'commander';
import type { AnabranchClient } from '../client/index.ts';
import { bytesText } from './bytes_text.ts';
import { configOfDatabase } from './config_options.ts';
import { type CliContext, CliError } from './context.ts';
import { valueJson } from './json_text.ts';
import { NO_PROGRESS, progressBar } from './progress_bar.ts';
import { addServerOptions, DEFAULT_ADDRESS, type ServerFlags, withServerOnExisting, write } from './server_access.ts';

interface VacuumFlags extends ServerFlags {
  readonly json?: true;
}

const DESCRIPTION =
  'Return the space of deleted rows to the file system (SQLite). On a running server, in short transactions beside its writers. ' +
  'With --database, the whole file is rewritten, which needs room for it twice; a server must not use it.';

/** Creates the command that returns free space. */
export function vacuumCommand(cli: CliContext): Command {
  const command = new Command('vacuum').description(DESCRIPTION).option('--json', 'print the result as JSON');
  return addServerOptions(command, `address of the server (default: ${DEFAULT_ADDRESS})`).action(
    async (flags: VacuumFlags) => {
      const freed = flags.database === undefined ? await vacuumServed(cli, flags) : await rewrite(cli, flags.database);
      const text = flags.json ? valueJson({ freedBytes: `${freed}` }) : `Returned ${bytesText(freed)}.`;
      await write(cli.stdout, `${text}\n`);
    },
  );
}

async function vacuumServed(cli: CliContext, flags: VacuumFlags): Promise<bigint> {
  let freed = 0n;
  await withServerOnExisting(cli, flags, async ({ client }) => {
    freed = await vacuum(cli, client, flags);
  });
  return freed;
}

async function vacuum({ stdout, signal }: CliContext, client: AnabranchClient, flags: VacuumFlags): Promise<bigint> {
  const progress = stdout.isTTY && !flags.json ? progressBar(stdout, 'bytes') : NO_PROGRESS;
  let freed = 0n;
  try {
    for await (const { freedBytes, freeBytes } of client.admin.vacuumDatabase({}, { signal })) {
      freed = freedBytes;
      if (freedBytes + freeBytes > 0n) progress.show(Number(freedBytes), Number(freedBytes + freeBytes));
    }
  } finally {
    progress.stop();
  }
  return freed;
}

async function rewrite(cli: CliContext, database: string): Promise<bigint> {
  const config = configOfDatabase(cli, database);
  if (config.database.engine !== 'sqlite') {
    throw new CliError('--database is a Postgres, which reuses the space of deleted rows by itself.', { exitCode: 2 });
  }
  const { compactDatabase } = await import('../server.ts');
  const { before, after } = compactDatabase(config.database.path);
  return BigInt(Math.max(0, before - after));
}
