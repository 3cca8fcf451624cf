import { Command } from 'commander';
import type { AnabranchClient } from '../client/index.ts';
import { bytesText, valueJson } from './columns.ts';
import { configOfDatabase } from './config_options.ts';
import { type CliContext, UsageError } from './context.ts';
import { openProgress } from './progress.ts';
import { addServerOptions, type ServerFlags, withServerOnExisting, write } from './server_access.ts';

interface VacuumFlags extends ServerFlags {
  readonly json?: true;
}

const DESCRIPTION =
  'Return the space of deleted rows to the file system (SQLite). On a running server, in short transactions beside its writers. ' +
  'With --database, the whole file is rewritten, which needs room for it twice; a server must not use it.';

/** Creates the command that returns free space. */
export function vacuumCommand(cli: CliContext): Command {
  const command = new Command('vacuum').description(DESCRIPTION).option('--json', 'print the result as JSON');
  return addServerOptions(command).action(async (flags: VacuumFlags) => {
    const freed =
      flags.database === undefined
        ? await withServerOnExisting(cli, flags, ({ client }) => vacuum(cli, client, flags))
        : await rewrite(cli, flags.database);
    const text = flags.json ? valueJson({ freedBytes: `${freed}` }) : `Returned ${bytesText(freed)}.`;
    await write(cli.stdout, `${text}\n`);
  });
}

async function vacuum(cli: CliContext, client: AnabranchClient, flags: VacuumFlags): Promise<bigint> {
  using progress = openProgress(cli, flags, 'bytes');
  let freed = 0n;
  for await (const { freedBytes, freeBytes } of client.admin.vacuumDatabase({}, { signal: cli.signal })) {
    freed = freedBytes;
    if (freedBytes + freeBytes > 0n) progress?.show(Number(freedBytes), Number(freedBytes + freeBytes));
  }
  return freed;
}

async function rewrite(cli: CliContext, database: string): Promise<bigint> {
  const config = configOfDatabase(cli, database);
  if (config.database.engine !== 'sqlite') {
    throw new UsageError('--database is a Postgres, which reuses the space of deleted rows by itself.');
  }
  const { compactDatabase } = await import('../server.ts');
  const { before, after } = compactDatabase(config.database.path);
  return BigInt(Math.max(0, before - after));
}
