/** HAProxy with the configuration of docker compose, in front of two servers of this machine. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import type { Authority } from './certificates.ts';
import { freePort } from './free_port.ts';
import { exitOf, letGo, startJanitor } from './janitor.ts';

const CONFIG = new URL('../../deploy/compose/haproxy.cfg', import.meta.url);

/** The names of the two servers, and the hosts in their certificates. */
export const BALANCED = [
  { name: 'first', host: 'anabranch' },
  { name: 'second', host: 'second' },
] as const;

export interface Balancer {
  /** `localhost:PORT`, with TLS. */
  readonly address: string;
  /** Resolves when the balancer sends calls to so many servers. */
  serving(count: number): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Writes the configuration with the paths and addresses of this machine. */
async function writeConfig(folder: string, authority: Authority, [port, ...ports]: readonly number[]): Promise<string> {
  const { cert, key } = authority.issue();
  await writeFile(path.join(folder, 'balancer.pem'), cert + key);
  await writeFile(path.join(folder, 'ca.crt'), authority.cert);
  let config = await readFile(CONFIG, 'utf8');
  const replace = (from: string, to: string) => {
    if (!config.includes(from)) throw new Error(`haproxy.cfg has no "${from}"`);
    config = config.replaceAll(from, to);
  };
  replace('/secrets/', `${folder}/`);
  replace('bind :50052', `bind 127.0.0.1:${port}`);
  for (const [i, { name, host }] of BALANCED.entries())
    replace(`server ${name} ${host}:50051`, `server ${name} 127.0.0.1:${ports[i]}`);
  replace('\nglobal\n', `\nglobal\n  stats socket ${path.join(folder, 'stats')}\n`);
  const file = path.join(folder, 'haproxy.cfg');
  await writeFile(file, config);
  return file;
}

/** HAProxy must be installed: `apt-get install haproxy`. */
export async function startBalancer(authority: Authority, servers: readonly number[]): Promise<Balancer> {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-haproxy-'));
  const port = await freePort();
  const config = await writeConfig(folder, authority, [port, ...servers]);
  const haproxy: ChildProcess = spawn('haproxy', ['-db', '-f', config], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: `${process.env.PATH}:/usr/sbin` },
  });
  const janitor = startJanitor('[ -z "$1" ] || kill -KILL "$1" 2>/dev/null; rm -rf "$2"', [
    `${haproxy.pid ?? ''}`,
    folder,
  ]);
  let log = '';
  for (const stream of [haproxy.stdout!, haproxy.stderr!])
    stream.setEncoding('utf8').on('data', (chunk: string) => (log = (log + chunk).slice(-20_000)));
  let failure: Error | undefined;
  haproxy.on('error', (cause) => {
    failure = new Error('This test needs haproxy: apt-get install haproxy', { cause });
  });
  letGo(haproxy);
  const upCount = async () => {
    const socket = net.connect(path.join(folder, 'stats'));
    const failed = once(socket, 'error').then(([error]) => Promise.reject(error));
    socket.end('show stat\n');
    const rows = (await Promise.race([text(socket), failed])).split('\n').map((row) => row.split(','));
    return rows.filter(([backend, server = '', ...rest]) => {
      const isServer = backend === 'anabranch' && BALANCED.some(({ name }) => name === server);
      return isServer && rest.includes('UP');
    }).length;
  };
  return {
    // Some clients send no address as the name of the server.
    address: `localhost:${port}`,
    async serving(count) {
      while ((await upCount().catch(() => undefined)) !== count) {
        if (failure !== undefined) throw failure;
        if (haproxy.exitCode !== null) throw new Error(`haproxy ended with code ${haproxy.exitCode}:\n${log}`);
        await delay(20);
      }
    },
    [Symbol.asyncDispose]: async () => {
      haproxy.kill('SIGKILL');
      if (failure === undefined) await exitOf(haproxy);
      await janitor.dismiss();
      await rm(folder, { recursive: true, force: true });
    },
  };
}
