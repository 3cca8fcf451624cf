import { spawn } from 'node:child_process';
import { chown, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { freePort } from './free_port.ts';
import { exitOf, letGo, startJanitor } from './janitor.ts';
import { runAs } from './postgres-binaries.ts';

/** A real pgbouncer in front of a database. It must be installed: `apt-get install pgbouncer`. */
export interface Pgbouncer {
  /** The URL of the same database, for the same role, through the pooler. */
  readonly url: string;
  readonly port: number;
  stop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export interface PgbouncerOptions {
  /** Connections to Postgres that all clients share. */
  readonly poolSize: number;
  /** Default: any free one. */
  readonly port?: number;
  /** Default: transaction. */
  readonly mode?: 'session' | 'transaction' | 'statement';
}

/** PGBOUNCER names another program than the one on the PATH. */
const PROGRAM = process.env.PGBOUNCER ?? 'pgbouncer';

export async function startPgbouncer(databaseUrl: string, options: PgbouncerOptions): Promise<Pgbouncer> {
  const user = runAs();
  const dir = await mkdtemp(path.join(os.tmpdir(), 'anabranch-pgbouncer-'));
  const port = options.port ?? (await freePort());
  const [config, users] = [path.join(dir, 'pgbouncer.ini'), path.join(dir, 'users.txt')];
  const url = new URL(databaseUrl);
  await writeFile(config, configOf(url, dir, port, options), { mode: 0o600 });
  await writeFile(users, `"${url.username}" "${url.password}"\n`, { mode: 0o600 });
  if (user.uid !== undefined && user.gid !== undefined) {
    await Promise.all([dir, config, users].map((file) => chown(file, user.uid!, user.gid!)));
  }
  const pooler = spawn(PROGRAM, [config], {
    ...user,
    cwd: '/',
    env: { PATH: `${process.env.PATH}:/usr/sbin` },
    stdio: ['ignore', 'ignore', 'pipe'],
    detached: true,
  });
  const janitor = startJanitor('[ -z "$1" ] || kill -INT "$1" 2>/dev/null; rm -rf "$2"', [`${pooler.pid ?? ''}`, dir]);
  let log = '';
  const ready = Promise.withResolvers<void>();
  pooler.on('error', (cause) =>
    ready.reject(new Error('This test needs pgbouncer: apt-get install pgbouncer', { cause })),
  );
  pooler.on('exit', (code) => ready.reject(new Error(`pgbouncer ended with code ${code}:\n${log}`)));
  pooler.stderr.setEncoding('utf8').on('data', (text: string) => {
    log = (log + text).slice(-20_000);
    if (log.includes('process up')) ready.resolve();
  });
  try {
    await ready.promise;
  } catch (error) {
    await janitor.dismiss();
    throw error;
  }
  letGo(pooler);
  const stop = async () => {
    pooler.kill('SIGINT');
    await exitOf(pooler);
    await janitor.dismiss();
    await rm(dir, { recursive: true, force: true });
  };
  const { username, password, pathname } = url;
  const pooled = `postgres://${username}:${password}@127.0.0.1:${port}${pathname}`;
  return { url: pooled, port, stop, [Symbol.asyncDispose]: stop };
}

function configOf(url: URL, dir: string, port: number, options: PgbouncerOptions): string {
  const host = url.searchParams.get('host') ?? url.hostname;
  return `[databases]
* = host=${host} port=${url.port || 5432}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir = ${dir}
auth_type = scram-sha-256
auth_file = ${dir}/users.txt
pool_mode = ${options.mode ?? 'transaction'}
default_pool_size = ${options.poolSize}
max_client_conn = 200
`;
}
