/** Connects client commands with a server: the one at `--address`, or one within the command on `--database`. */
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { Code, ConnectError } from '@connectrpc/connect';
import { type Command, Option } from 'commander';
import { pino } from 'pino';
import { DEFAULT_ADDRESS } from '../client/environment.ts';
import { type AnabranchClient, connectClient, reasonOf } from '../client/index.ts';
import { type Config, loadConfig } from '../config/config.ts';
import { mayHoldPassword, scrubUrl } from '../config/scrub_url.ts';
import { paintFor } from './columns.ts';
import { type CliContext, CliError, type Output, UsageError } from './context.ts';

/** Deadline of calls that a person waits for at the terminal. */
export const FIRST_ANSWER = { timeoutMs: 10_000 };

export interface ServerFlags {
  readonly address?: string;
  readonly database?: string;
}

export function addServerOptions(
  command: Command,
  addressDoc = `address of the server (default: ANABRANCH_ADDRESS, else ${DEFAULT_ADDRESS})`,
): Command {
  return command
    .addOption(new Option('--address <HOST:PORT>', addressDoc).conflicts('database'))
    .option(
      '--database <URL>',
      'start a server within this command, on sqlite:PATH or postgres://… (see `serve --help`)',
    );
}

export interface Access {
  readonly client: AnabranchClient;
  /** The flags that reach the same data, for commands that the output suggests. */
  readonly flags: string;
}

/** For commands that only read: a missing SQLite file is a mistyped name and must not be created. */
export async function withServerOnExisting<T>(
  cli: CliContext,
  flags: ServerFlags,
  work: (access: Access) => Promise<T>,
): Promise<T> {
  if (flags.database !== undefined) configOfExisting(cli, flags.database);
  return withServer(cli, flags, work);
}

/** Returns the configuration for a database that `flag` names. A missing SQLite file is a mistyped name. */
export function configOfExisting(cli: CliContext, named: string, flag = '--database'): Config {
  const config = configOfNamed(cli, named, flag);
  const { database } = config;
  if (database.engine === 'postgres' || existsSync(database.path)) return config;
  throw new UsageError(`${flag} is "${named}": the file ${database.path} does not exist.`);
}

/** Returns the configuration for a database that `flag` names, which may not exist. */
export function configOfNamed(cli: CliContext, named: string, flag: string): Config {
  const config = loadConfig({ env: cli.env, flags: { database: named }, cwd: cli.cwd });
  return { ...config, databaseChosenBy: flag };
}

/**
 * Runs `work` with a server and closes everything that it opened. Errors become a CliError if they can be explained.
 */
export async function withServer<T>(
  cli: CliContext,
  flags: ServerFlags,
  work: (access: Access) => Promise<T>,
): Promise<T> {
  const { database, address = cli.env.ANABRANCH_ADDRESS || DEFAULT_ADDRESS } = flags;
  if (database === undefined) return atAddress(cli, address, `--address ${address}`, work);
  // Only this command is connected, so there are no other calls to wait for at the end. What a command removes, it
  // says: policies are for servers that run on.
  const inside = {
    database,
    listen: '127.0.0.1:0',
    metricsListen: '',
    tlsCert: '',
    tlsKey: '',
    auth: 'off',
    adminKeyFile: '',
    jwtIssuer: '',
    jwtJwks: '',
    jwtAudience: '',
    jwtCa: '',
    jwtTokenFile: '',
    clientCa: '',
    principals: '',
    drainSeconds: '1',
    retentionPolicies: 'false',
  };
  const config = { ...loadConfig({ env: cli.env, flags: inside, cwd: cli.cwd }), tls: undefined };
  for (const warning of config.warnings) await write(cli.stderr, `anabranch: ${warning}\n`);
  // Loaded on demand, so that a command for a remote server starts fast.
  const { startServer } = await import('../server.ts');
  const logger = pino({ level: 'error' }, cli.stderr);
  const server = await startServer(config, { logger, validator: cli.validator });
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
  const client = connect(cli, address);
  try {
    return await work({ client, flags });
  } catch (error) {
    throw explain(error, address, commandPrefix(cli));
  } finally {
    client.close();
  }
}

function connect({ env }: CliContext, address: string): AnabranchClient {
  try {
    return connectClient({ address }, env);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    const message = error.message.startsWith('ANABRANCH_')
      ? `${error.message}.`
      : mayHoldPassword(address)
        ? '--address is not the address of a server (not shown: it may hold a password): expected HOST:PORT.'
        : `--address: ${error.message}.`;
    throw new UsageError(message, { cause: error });
  }
}

/**
 * Prints where the page shows the same, below an output for people. A server within the command ends with it, and a
 * browser cannot open a Unix socket, so only the page of a server at the port of an `--address` is named.
 */
export async function writePageLink(
  cli: CliContext,
  flags: ServerFlags,
  client: AnabranchClient,
  path: string,
): Promise<void> {
  if (cli.stdout.isTTY !== true || flags.database !== undefined || client.url.startsWith('unix:')) return;
  await write(cli.stdout, `\n${paintFor(cli.stdout, cli.env).dim(`Page: ${client.url}${path}`)}\n`);
}

/** Quotes a text so that a shell reads it as one word. */
export function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/**
 * Returns how the user starts this program: a clone runs its source with the project's own Node, pip installs a bundle
 * with a command, and npm installs `bin/anabranch.js`.
 */
export function commandPrefix(cli: Pick<CliContext, 'self'>): string {
  const script = cli.self.at(-1) ?? '';
  if (script.endsWith('.ts')) return 'npm run -s anabranch --';
  return script.endsWith('/main.js') ? 'anabranch' : 'npx anabranch';
}

/** The commands that list what an error did not find. */
const LISTED_BY: Readonly<Record<string, string>> = {
  TRAJECTORY_NOT_FOUND: 'tree',
  RUN_NOT_FOUND: 'runs',
  EXPERIMENT_NOT_FOUND: 'runs',
  STAGE_NOT_FOUND: 'run RUN',
  ROLLOUT_NOT_FOUND: 'run RUN --rollouts',
};

/** Returns a CliError with one line that says what to do. Returns other errors unchanged. */
export function explain(error: unknown, address: string, command: string): unknown {
  if (!(error instanceof ConnectError)) return error;
  const reason = reasonOf(error);
  const message = error.rawMessage.replace(/\.$/, '');
  const failed = (text: string) => new CliError(text, { cause: error });
  const list = reason === undefined ? undefined : LISTED_BY[reason];
  if (list !== undefined) return failed(`${message}. \`${command} ${list}\` lists what exists.`);
  if (reason !== undefined) return failed(`${message} (${reason}).`);
  if (error.code === Code.Unavailable) {
    return failed(
      `No server answers at ${address} (--address). Start one with \`${command} serve\`, or open a database without a server: ` +
        '--database sqlite:.anabranch/data.db',
    );
  }
  if (error.code === Code.DeadlineExceeded)
    return failed(`The server at ${address} (--address) does not answer in time.`);
  return failed(`The server at ${address} (--address) is not an Anabranch server: ${message}.`);
}

/** Writes text, and waits while the reader of a pipe is slower. */
export async function write(output: Output, text: string): Promise<void> {
  if (!output.write(text)) await once(output, 'drain');
}

/** Reads all pages of a list. */
export async function readAll<Page extends { readonly nextPageToken: string }, Item>(
  fetchPage: (pageToken: string) => Promise<Page>,
  itemsOf: (page: Page) => readonly Item[],
): Promise<Item[]> {
  return (await readUntil(fetchPage, itemsOf, () => false)).items;
}

/** Reads pages of a list until it has enough items. Returns whether there are more. */
export async function readUntil<Page extends { readonly nextPageToken: string }, Item>(
  fetchPage: (pageToken: string, before: readonly Item[]) => Promise<Page>,
  itemsOf: (page: Page) => readonly Item[],
  isEnough: (items: readonly Item[]) => boolean,
): Promise<{ readonly items: Item[]; readonly more: boolean }> {
  const items: Item[] = [];
  let pageToken = '';
  do {
    const page = await fetchPage(pageToken, items);
    items.push(...itemsOf(page));
    pageToken = page.nextPageToken;
  } while (pageToken !== '' && !isEnough(items));
  return { items, more: pageToken !== '' };
}
