/** The service as users run it: in a process of its own, for tests of the command line, of restarts and of kills. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { letGo, startJanitor } from './janitor.ts';
import { programFile } from './program.ts';

export interface SpawnOptions {
  /** Another program of this repository that announces itself as `serve --json` does. Default: the service. */
  readonly program?: string;
  /** The value of `--database`, passed as DATABASE_URL, like a password should be. */
  readonly database: string;
  /** Default: `127.0.0.1:0`, any free port. */
  readonly listen?: string;
  /** More arguments of `serve`. */
  readonly args?: readonly string[];
  /** Additional environment; settings of this process are not passed on. */
  readonly env?: Readonly<Record<string, string>>;
  /** Arguments of Node itself, such as `--max-old-space-size=256`. */
  readonly nodeArgs?: readonly string[];
  /** How many files the process may open at the same time. Default: as many as the test itself. */
  readonly openFiles?: number;
  /** A program with arguments that runs the server and keeps its process id, such as `strace -D`. */
  readonly wrapper?: readonly string[];
}

/** How a process ended: with an exit code, or by a signal. */
export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export interface SpawnedServer {
  readonly url: string;
  readonly host: string;
  readonly port: number;
  /** The description of the store that `serve` prints. */
  readonly store: string;
  readonly pid: number;
  /** Settles when the process has ended, for whatever reason. */
  readonly exited: Promise<Exit>;
  /** All it has written so far, to stdout and stderr. */
  output(): string;
  signal(name: NodeJS.Signals): void;
  /** Sends SIGTERM, for an orderly shutdown. */
  terminate(): Promise<Exit>;
  /** Sends SIGKILL. */
  kill(): Promise<Exit>;
  /** Kills it if it is still running. */
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * Starts `node src/main.ts serve --json …`, or a bundle of it. Resolves when it is ready. Rejects with its output if it
 * ends before.
 */
export async function spawnServer(options: SpawnOptions): Promise<SpawnedServer> {
  // A folder of its own, so that no other .env file is read.
  const cwd = await mkdtemp(path.join(os.tmpdir(), 'anabranch-server-'));
  const args = ['serve', '--json', '--listen', options.listen ?? '127.0.0.1:0', ...(options.args ?? [])];
  const command = [
    ...(options.wrapper ?? []),
    process.execPath,
    ...(options.nodeArgs ?? []),
    programFile(options.program ?? 'src/main.ts'),
    ...args,
  ];
  const limit = options.openFiles === undefined ? '' : `ulimit -n ${options.openFiles} && `;
  const child = spawn('sh', ['-c', `${limit}exec "$@"`, 'sh', ...command], {
    cwd,
    env: { ...baseEnv(), DATABASE_URL: options.database, ...options.env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const janitor = startJanitor('kill -KILL "$1"; rm -rf "$2"', [String(child.pid), cwd]);
  const exited = once(child, 'close').then(async (): Promise<Exit> => {
    janitor.cancel();
    await rm(cwd, { recursive: true, force: true });
    return { code: child.exitCode, signal: child.signalCode };
  });
  const { ready, output } = listen(child, exited);
  const announced = await ready;
  letGo(child);

  const end = (signal: NodeJS.Signals) => {
    child.ref();
    child.kill(signal);
    return exited;
  };
  return {
    url: announced.url,
    host: announced.host,
    port: announced.port,
    store: announced.store,
    pid: child.pid ?? 0,
    exited,
    output,
    signal: (name) => void child.kill(name),
    terminate: () => end('SIGTERM'),
    kill: () => end('SIGKILL'),
    [Symbol.asyncDispose]: async () => void (await end('SIGKILL')),
  };
}

/** Variables that a process needs to run at all, without settings of the service. */
function baseEnv(): Record<string, string> {
  const kept = ['PATH', 'HOME', 'TMPDIR', 'LANG', 'NODE_COMPILE_CACHE'];
  return Object.fromEntries(kept.flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])));
}

interface Ready {
  readonly url: string;
  readonly host: string;
  readonly port: number;
  readonly store: string;
}

function listen(
  child: ChildProcessByStdio<null, Readable, Readable>,
  exited: Promise<Exit>,
): { ready: Promise<Ready>; output: () => string } {
  const lines: string[] = [];
  const ready = Promise.withResolvers<Ready>();
  createInterface(child.stdout).on('line', (line) => {
    lines.push(line);
    const announced = readyLine(line);
    if (announced) ready.resolve(announced);
  });
  createInterface(child.stderr).on('line', (line) => lines.push(line));
  const output = () => lines.join('\n');
  child.on('error', ready.reject);
  void exited.then(({ code, signal }) =>
    ready.reject(new Error(`The server ended (${signal ?? `code ${code}`}) before it was ready:\n${output()}`)),
  );
  return { ready: ready.promise, output };
}

function readyLine(line: string): Ready | undefined {
  if (!line.startsWith('{')) return undefined;
  const message = JSON.parse(line) as Ready & { event?: string };
  return message.event === 'ready' ? message : undefined;
}
