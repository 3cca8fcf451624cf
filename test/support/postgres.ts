/**
 * A real Postgres for tests, without Docker and without an installed server: initdb and postgres from npm-installed
 * programs, a new cluster in the temp folder, fsync on. It starts in about a second, also as root, and any number can
 * run side by side.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chown, mkdtemp, realpath, rename, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { setTimeout as wait } from 'node:timers/promises';
import { promisify } from 'node:util';
import pg from 'pg';
import { freePort } from './free_port.ts';
import { exitOf, type Janitor, letGo, startJanitor } from './janitor.ts';
import { embeddedBinaries, programEnv, type RunAs, runAs } from './postgres-binaries.ts';
import { killTree } from './process-tree.ts';

const run = promisify(execFile);

export interface PostgresOptions {
  /** The parent of the cluster's folder. Default: the temp folder. */
  readonly dir?: string;
  /** Also listen on 127.0.0.1: at this port, or `'free'` for one the system picks. Default: a Unix socket only. */
  readonly port?: number | 'free';
  /** The folder of the `initdb` and `postgres` of another Postgres. Default: the npm-installed Postgres 18. */
  readonly bin?: string;
  /** Additional settings of postgresql.conf, for this cluster. */
  readonly settings?: Readonly<Record<string, string>>;
  /** The cluster has an identifier of its own. Default: clusters of a run of tests are copies of one. */
  readonly isNew?: boolean;
  /** A program with arguments that runs the server and keeps its process id, such as `strace -D`. */
  readonly wrapper?: readonly string[];
}

export interface PostgresServer {
  /** URL of the superuser, on the database `postgres`. */
  readonly url: string;
  /** The folder of the cluster, its socket and its log. */
  readonly dir: string;
  /** Process id of the postmaster; it changes with `restart`. */
  readonly pid: number;
  /** SIGKILL for the postmaster and every backend, like a power failure of the database server. */
  killAll(): Promise<void>;
  /**
   * Starts again on the same files and address, after a fast stop if it is still running. Resolves when it is ready.
   */
  restart(): Promise<void>;
  /** Ends it and removes its files. Safe to call twice. */
  stop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export async function startPostgres(options: PostgresOptions = {}): Promise<PostgresServer> {
  const user = runAs();
  const dir = await clusterFolder(options.dir ?? shortFolder(), user);
  const janitor = startJanitor(CLEAN_UP, [dir]);
  try {
    const bin = options.bin ?? (await embeddedBinaries(dir, user));
    const port = options.port === 'free' ? await freePort() : options.port;
    if (options.isNew === true) await initdb(bin, path.join(dir, 'data'), user);
    else await initialise(bin, dir, user);
    const command = [...(options.wrapper ?? []), path.join(bin, 'postgres')];
    const start = () => startPostmaster([...command, ...serverArguments(dir, port, options.settings)], user);
    return clusterOf({ dir, url: urlOf(dir, port), start, postmaster: await start(), janitor });
  } catch (error) {
    await janitor.dismiss();
    throw error;
  }
}

/**
 * Starts a hot standby of a server that listens on a socket only. The server is killed for it and started again, so
 * that its files can be copied.
 */
export async function startStandby(primary: PostgresServer): Promise<PostgresServer> {
  const user = runAs();
  const dir = await clusterFolder(shortFolder(), user);
  const janitor = startJanitor(CLEAN_UP, [dir]);
  try {
    const bin = await embeddedBinaries(dir, user);
    const data = path.join(dir, 'data');
    await primary.killAll();
    await copyTree(path.join(primary.dir, 'data'), data);
    await rm(path.join(data, 'postmaster.pid'));
    await writeFile(path.join(data, 'standby.signal'), '');
    await primary.restart();
    const settings = { primary_conninfo: `host=${primary.dir} user=postgres` };
    const start = () =>
      startPostmaster([path.join(bin, 'postgres'), ...serverArguments(dir, undefined, settings)], user);
    const standby = clusterOf({ dir, url: urlOf(dir, undefined), start, postmaster: await start(), janitor });
    await replayed(primary.url, standby.url);
    return standby;
  } catch (error) {
    await janitor.dismiss();
    throw error;
  }
}

/**
 * Starts a hot standby of a server that listens on a port, while that one serves. `bin` is the folder of a Postgres of
 * the same version that has pg_basebackup.
 */
export async function startReplica(
  primary: PostgresServer,
  { bin, port, settings = {} }: { bin: string; port: number; settings?: PostgresOptions['settings'] },
): Promise<PostgresServer> {
  const user = runAs();
  const dir = await clusterFolder(shortFolder(), user);
  const janitor = startJanitor(CLEAN_UP, [dir]);
  try {
    const from = ['--host=127.0.0.1', `--port=${new URL(primary.url).port}`, '--username=postgres'];
    const how = ['--checkpoint=fast', '--no-sync', '--write-recovery-conf'];
    const args = [`--pgdata=${path.join(dir, 'data')}`, ...from, ...how];
    await run(path.join(bin, 'pg_basebackup'), args, { ...user, cwd: '/', env: programEnv });
    const start = () => startPostmaster([path.join(bin, 'postgres'), ...serverArguments(dir, port, settings)], user);
    return clusterOf({ dir, url: urlOf(dir, port), start, postmaster: await start(), janitor });
  } catch (error) {
    await janitor.dismiss();
    throw error;
  }
}

/** Resolves when the standby has all that the primary has now. */
async function replayed(primaryUrl: string, standbyUrl: string): Promise<void> {
  const [primary, standby] = [new pg.Client(primaryUrl), new pg.Client(standbyUrl)];
  try {
    await Promise.all([primary.connect(), standby.connect()]);
    const { rows } = await primary.query('select pg_current_wal_lsn() as lsn');
    for (;;) {
      const found = await standby.query('select pg_last_wal_replay_lsn() >= $1 as done', [rows[0].lsn]);
      if (found.rows[0].done === true) return;
      await wait(20);
    }
  } finally {
    await Promise.all([primary.end(), standby.end()]);
  }
}

interface Cluster {
  readonly dir: string;
  readonly url: string;
  readonly start: () => Promise<ChildProcess>;
  readonly janitor: Janitor;
  postmaster: ChildProcess;
}

function clusterOf(cluster: Cluster): PostgresServer {
  const stop = async () => {
    await end(cluster.postmaster);
    await cluster.janitor.dismiss();
  };
  return {
    url: cluster.url,
    dir: cluster.dir,
    get pid() {
      return pidOf(cluster.postmaster);
    },
    async killAll() {
      const exited = exitOf(cluster.postmaster);
      await killTree(pidOf(cluster.postmaster));
      await exited;
    },
    async restart() {
      await end(cluster.postmaster);
      cluster.postmaster = await cluster.start();
    },
    stop,
    [Symbol.asyncDispose]: stop,
  };
}

/** The temp folder, unless the path of a socket in it would be too long (as on macOS). */
function shortFolder(): string {
  return Buffer.byteLength(os.tmpdir()) <= 50 ? os.tmpdir() : '/tmp';
}

async function clusterFolder(parent: string, user: RunAs): Promise<string> {
  const dir = await mkdtemp(path.join(await realpath(parent), 'anabranch-pg-'));
  if (user.uid !== undefined && user.gid !== undefined) await chown(dir, user.uid, user.gid);
  // The kernel's limit for the path of a Unix socket is 108 bytes on Linux and 104 on macOS.
  if (Buffer.byteLength(dir) > 80)
    throw new Error(`The folder ${dir} is too deep for a Unix socket: use a shorter one`);
  return dir;
}

/**
 * Creates the files of a cluster. In a run of tests only the first one is made by initdb: all others are copies of it,
 * which take a tenth of the CPU time.
 */
async function initialise(bin: string, dir: string, user: RunAs): Promise<void> {
  const data = path.join(dir, 'data');
  const first = firstCluster(bin);
  if (first !== undefined && existsSync(first)) return copyTree(first, data);
  await initdb(bin, data, user);
  if (first === undefined) return;
  const copy = await mkdtemp(`${first}-`);
  await copyTree(data, path.join(copy, 'data'));
  // Another process may have been faster. A rename shows the copy as a whole.
  await rename(path.join(copy, 'data'), first).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error;
  });
  await rm(copy, { recursive: true });
}

/** Where the first cluster of these programs is kept. Undefined outside a run of tests: nothing would remove it. */
function firstCluster(bin: string): string | undefined {
  const folder = process.env.TEST_CLUSTERS;
  return folder === undefined ? undefined : path.join(folder, `cluster${bin.replaceAll(path.sep, '-')}`);
}

/** Also keeps the owners of files. */
async function copyTree(from: string, to: string): Promise<void> {
  await run('cp', ['-a', from, to]);
}

/**
 * Text is sorted by the rules of a language (ICU), not by bytes, as on many real servers: an ORDER BY or a page
 * boundary that relies on byte order fails here instead of in production.
 */
async function initdb(bin: string, data: string, user: RunAs): Promise<void> {
  const locale = ['--locale=C', '--encoding=UTF8', '--locale-provider=icu', '--icu-locale=en-US'];
  const args = ['-D', data, '-U', 'postgres', '--auth=trust', '--no-sync', ...locale];
  await run(path.join(bin, 'initdb'), args, { ...user, cwd: '/', env: programEnv });
}

function serverArguments(dir: string, port: number | undefined, settings: PostgresOptions['settings'] = {}): string[] {
  const all = {
    listen_addresses: port === undefined ? '' : '127.0.0.1',
    port: String(port ?? 5432),
    unix_socket_directories: dir,
    max_connections: '200',
    ...settings,
  };
  return ['-D', path.join(dir, 'data'), ...Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`])];
}

function urlOf(dir: string, port: number | undefined): string {
  const host = port === undefined ? `localhost/postgres?host=${encodeURIComponent(dir)}` : `127.0.0.1:${port}/postgres`;
  return `postgres://postgres@${host}`;
}

/** Detached: an interrupt from the keyboard reaches the tests first, and they stop the server in order. */
async function startPostmaster([program, ...args]: readonly string[], user: RunAs): Promise<ChildProcess> {
  const postmaster = spawn(program!, args, {
    ...user,
    cwd: '/',
    env: programEnv,
    stdio: ['ignore', 'ignore', 'pipe'],
    detached: true,
  });
  let log = '';
  const ready = Promise.withResolvers<void>();
  postmaster.on('error', ready.reject);
  postmaster.on('exit', (code) =>
    ready.reject(new Error(`Postgres ended with code ${code} before it was ready:\n${log}`)),
  );
  postmaster.stderr.setEncoding('utf8').on('data', (text: string) => {
    log = (log + text).slice(-20_000);
    if (/ready to accept (read-only )?connections/.test(log)) ready.resolve();
  });
  await ready.promise;
  letGo(postmaster);
  return postmaster;
}

/** Stops a server that nobody stopped (at once, like SIGQUIT) and removes its folder. */
const CLEAN_UP = `
  if pid=$(head -n 1 "$1/data/postmaster.pid") && kill -QUIT "$pid"; then
    tries=0
    while [ -e "$1/data/postmaster.pid" ] && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
  fi
  rm -rf "$1"`;

async function end(postmaster: ChildProcess): Promise<void> {
  const exited = exitOf(postmaster);
  postmaster.kill('SIGINT'); // "fast": ends open sessions, then shuts down in order
  await exited;
}

function pidOf(child: ChildProcess): number {
  if (child.pid === undefined) throw new Error('Postgres was not started');
  return child.pid;
}
