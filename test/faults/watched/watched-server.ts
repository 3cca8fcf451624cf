/**
 * A server in a process of its own, of which a test measures what users cannot: connections, handlers, memory, pauses.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { setTimeout as wait } from 'node:timers/promises';
import type { ServerCounts } from '../../../src/server.ts';
import type { Engine, TestDatabase } from '../../support/database.ts';
import { exitOf } from '../../support/janitor.ts';
import { createMigratedDatabase } from '../../support/migrated_database.ts';
import { programFile } from '../../support/program.ts';

/** What the process reports about itself. */
export interface Glance {
  readonly counts: ServerCounts;
  readonly heapUsed: number;
  readonly cpuMs: number;
  /** The longest time that its event loop was blocked since the last report. */
  readonly longestPauseMs: number;
}

export interface WatchedServer {
  readonly url: string;
  readonly port: number;
  readonly database: TestDatabase;
  glance(): Promise<Glance>;
  /** MiB of memory in use, and the maximum since the last call of `forgetPeak`. */
  memory(): Promise<{ readonly now: number; readonly peak: number }>;
  forgetPeak(): Promise<void>;
  /** Open file descriptors. */
  files(): Promise<number>;
  /** Resolves when nothing is open any more; throws with the counts after this time. */
  empty(withinMs: number): Promise<void>;
  /** The process is the one that was started. */
  readonly alive: boolean;
  output(): string;
  [Symbol.asyncDispose](): Promise<void>;
}

export interface WatchOptions {
  readonly engine: Engine;
  /** Settings of the application that users cannot change. */
  readonly settings?: { readonly slowReaderMs?: number };
  /** Settings by the flag names of `serve`, in camel case. */
  readonly flags?: Readonly<Record<string, string>>;
  /** MiB that Node may use for objects; it ends the process if that is not enough. Default: Node's own. */
  readonly heap?: number;
}

export async function watchServer({ engine, settings = {}, flags = {}, heap }: WatchOptions): Promise<WatchedServer> {
  const database = await createMigratedDatabase(engine);
  const args = [database.url, JSON.stringify(settings), JSON.stringify(flags)];
  const child = fork(programFile('test/faults/watched/child.ts'), args, {
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    execArgv: heap === undefined ? [] : [`--max-old-space-size=${heap}`],
  });
  const lines: Buffer[] = [];
  for (const stream of [child.stdout, child.stderr]) stream?.on('data', (piece: Buffer) => lines.push(piece));
  const output = () => Buffer.concat(lines).toString();
  const { url, port } = await nextWord<{ url: string; port: number }>(child, output);
  const glance = () => {
    const answer = nextWord<Glance>(child, output);
    child.send('look');
    return answer;
  };
  return {
    url,
    port,
    database,
    glance,
    memory: () => memoryOf(child.pid!),
    forgetPeak: () => writeFile(`/proc/${child.pid}/clear_refs`, '5'),
    files: async () => (await readdir(`/proc/${child.pid}/fd`)).length,
    empty: (withinMs) => untilEmpty(glance, withinMs),
    get alive() {
      return child.exitCode === null && child.signalCode === null;
    },
    output,
    [Symbol.asyncDispose]: async () => {
      child.kill('SIGKILL');
      await exitOf(child);
      await database.drop();
    },
  };
}

/** Returns the next message of the process. Throws what it printed if it ends instead. */
async function nextWord<T>(child: ChildProcess, output: () => string): Promise<T> {
  const given = new AbortController();
  const ended = exitOf(child, given.signal).then(() => {
    throw new Error(`the watched server ended:\n${output()}`);
  });
  const word = once(child, 'message', given) as Promise<[T]>;
  try {
    return (await Promise.race([word, ended]))[0];
  } finally {
    for (const rest of [word, ended]) rest.catch(() => undefined);
    given.abort();
  }
}

async function memoryOf(pid: number): Promise<{ now: number; peak: number }> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  const mebibytes = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'mu').exec(status)?.[1]) / 1024;
  return { now: mebibytes('VmRSS'), peak: mebibytes('VmHWM') };
}

async function untilEmpty(glance: () => Promise<Glance>, withinMs: number): Promise<void> {
  const deadline = performance.now() + withinMs;
  for (;;) {
    const { counts } = await glance();
    if (Object.values(counts).every((count) => count === 0)) return;
    if (performance.now() > deadline) throw new Error(`still open after ${withinMs} ms: ${JSON.stringify(counts)}`);
    await wait(20);
  }
}
