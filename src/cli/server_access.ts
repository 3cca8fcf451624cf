/** How commands that are clients reach a server: one at `--address`, or one inside themselves on `--database`. */
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { Code, ConnectError } from '@connectrpc/connect';
import { type Command, Option } from 'commander';
import { pino } from 'pino';
import { type AnabranchClient, connectClient, reasonOf } from '../client/index.ts';
import { loadConfig, scrubUrl } from '../config.ts';
import { type CliContext, CliError, type Output } from './context.ts';

export const DEFAULT_ADDRESS = '127.0.0.1:50051';

/** For calls that somebody waits for at the terminal. */
export const FIRST_ANSWER = { timeoutMs: 10_000 };

/** JSON as over HTTP: zeros are written. */
export const JSON_FORM = { alwaysEmitImplicit: true };

export interface ServerFlags {
  readonly address?: string;
  readonly database?: string;
}

export function addServerOptions(command: Command, addressDoc: string): Command {
  return command
    .addOption(new Option('--address <HOST:PORT>', addressDoc).conflicts('database'))
    .addOption(
      new Option(
        '--database <URL>',
        'start a server inside this command, on sqlite:PATH or postgres://… (see `serve --help`)',
      ),
    );
}

export interface Access {
  readonly client: AnabranchClient;
  /** The flags that reach the same data again, for commands to suggest. */
  readonly flags: string;
}

/** For commands that only look: a SQLite file that is not there is a mistyped name, not one to be made. */
export async function withServerOnExisting<T>(
  cli: CliContext,
  flags: ServerFlags,
  work: (access: Access) => Promise<T>,
): Promise<T> {
  if (flags.database !== undefined) {
    const { database } = loadConfig({ env: cli.env, flags: { database: flags.database }, cwd: cli.cwd });
    if (database.engine === 'sqlite' && !existsSync(database.path)) {
      throw new CliError(`--database is "${flags.database}": there is no file ${database.path}.`, { exitCode: 2 });
    }
  }
  return withServer(cli, flags, work);
}

/** Does the work with a server, and ends what it began. What fails is explained (CliError) as far as it can be. */
export async function withServer<T>(
  cli: CliContext,
  flags: ServerFlags,
  work: (access: Access) => Promise<T>,
): Promise<T> {
  const { database, address = DEFAULT_ADDRESS } = flags;
  if (database === undefined) return atAddress(cli, address, `--address ${address}`, work);
  // Nobody but this command is connected: there is nobody to wait for at the end.
  const inside = { database, listen: '127.0.0.1:0', drainSeconds: '1' };
  const config = loadConfig({ env: cli.env, flags: inside, cwd: cli.cwd });
  for (const warning of config.warnings) await write(cli.stderr, `anabranch: ${warning}\n`);
  // Loaded when needed: a command that talks to a server elsewhere starts without the weight of one.
  const { startServer } = await import('../server.ts');
  const server = await startServer(config, { logger: pino({ level: 'error' }, cli.stderr) });
  try {
    return await atAddress(cli, server.url, `--database ${quoted(scrubUrl(database))}`, work);
  } finally {
    await server.drain();
  }
}

async function atAddress<T>(
  cli: CliContext,
  address: string,
  flags: string,
  work: (access: Access) => Promise<T>,
): Promise<T> {
  const client = connect(address);
  try {
    return await work({ client, flags });
  } catch (error) {
    throw explain(error, address, commandPrefix(cli));
  } finally {
    client.close();
  }
}

function connect(address: string): AnabranchClient {
  try {
    return connectClient({ address });
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new CliError(`--address: ${error.message}.`, { exitCode: 2, cause: error });
  }
}

/** As a shell takes it for one word. */
function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/** How this program is called from where it runs: a clone runs its source, whatever the machine's own Node is. */
export function commandPrefix(cli: Pick<CliContext, 'self'>): string {
  return cli.self.at(-1)?.endsWith('.ts') ? 'npm run -s anabranch --' : 'npx anabranch';
}

/** What is not here, and the command that lists what is. */
const LISTED_BY: Readonly<Record<string, string>> = {
  TRAJECTORY_NOT_FOUND: 'tree',
  RUN_NOT_FOUND: 'runs',
  EXPERIMENT_NOT_FOUND: 'runs',
  STAGE_NOT_FOUND: 'run RUN',
  ROLLOUT_NOT_FOUND: 'rollouts RUN',
};

/** One line for a person, with what to do next; what cannot be explained is thrown on as it is. */
export function explain(error: unknown, address: string, command: string): unknown {
  if (!(error instanceof ConnectError)) return error;
  const reason = reasonOf(error);
  const said = error.rawMessage.replace(/\.$/, '');
  const failed = (text: string) => new CliError(text, { cause: error });
  const list = reason === undefined ? undefined : LISTED_BY[reason];
  if (list !== undefined) return failed(`${said}. \`${command} ${list}\` lists what is there.`);
  if (reason !== undefined) return failed(`${said} (${reason}).`);
  if (error.code === Code.Unavailable) {
    return failed(
      `No server answers at ${address} (--address). Start one with \`${command} serve\`, or look into a database without one: ` +
        '--database sqlite:.anabranch/data.db',
    );
  }
  if (error.code === Code.DeadlineExceeded)
    return failed(`The server at ${address} (--address) does not answer in time.`);
  return failed(`What answers at ${address} (--address) does not talk as Anabranch does: ${said}.`);
}

/** Writes, and waits while the reader of a pipe is slower. */
export async function write(output: Output, text: string): Promise<void> {
  if (!output.write(text)) await once(output, 'drain');
}

/** All items of a list, page by page to its end. */
export async function readAll<Page extends { readonly nextPageToken: string }, Item>(
  ask: (pageToken: string) => Promise<Page>,
  itemsOf: (page: Page) => readonly Item[],
): Promise<Item[]> {
  const items: Item[] = [];
  let pageToken = '';
  do {
    const page = await ask(pageToken);
    items.push(...itemsOf(page));
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
  return items;
}
