import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';

/** Writes a report. */
export type Report<R> = (report: R) => void;

/** A client in a process of its own that reports its progress, one JSON text per line. */
interface ClientProcess<R> {
  readonly pid: number;
  /** The reports in order, until the output ends. */
  readonly reports: AsyncIterable<R>;
  /**
   * Sends SIGKILL, so that the process can neither finish nor clean up. Resolves when the process has ended. Can be
   * called again.
   */
  kill(): Promise<void>;
  /** Resolves if the process ends with code 0. Otherwise rejects with its error output. */
  ended(): Promise<void>;
}

/** Starts the command with the task as its last argument. */
export function startClientProcess<R>(
  task: object,
  { clientCommand: [program = '', ...args] }: { readonly clientCommand: readonly string[] },
): ClientProcess<R> {
  const child = spawn(program, [...args, JSON.stringify(task)], { stdio: ['ignore', 'pipe', 'pipe'] });
  let complaint = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    complaint = (complaint + text).slice(-2000);
  });
  const exited = new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(`an error (${error.message})`));
    child.once('close', (code, signal) => resolve(signal === null ? `code ${code}` : `signal ${signal}`));
  });
  return {
    pid: child.pid ?? 0,
    reports: reportsOf<R>(child.stdout),
    kill: async () => {
      child.kill('SIGKILL');
      await exited;
    },
    ended: async () => {
      const how = await exited;
      if (how !== 'code 0')
        throw new Error(`the client's process ended with ${how}: ${complaint.trim() || 'no output'}`);
    },
  };
}

async function* reportsOf<R>(input: Readable): AsyncGenerator<R> {
  for await (const line of createInterface({ input })) yield JSON.parse(line) as R;
}

/** Does the work, and kills the process however the work ends. */
export async function withProcess<R>(
  process: ClientProcess<R>,
  signal: AbortSignal,
  work: (process: ClientProcess<R>) => Promise<void>,
): Promise<void> {
  const stop = () => void process.kill();
  signal.addEventListener('abort', stop, { once: true });
  try {
    if (signal.aborted) stop();
    await work(process);
  } finally {
    signal.removeEventListener('abort', stop);
    await process.kill();
  }
}

/** Blocks the whole event loop, like a process that is stuck in its environment, until the process is killed. */
export function standStill(): never {
  const seconds = 30;
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, seconds * 1000);
  throw new Error(`this process was not killed within ${seconds} seconds`);
}
