import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import type { DemoOptions } from './events.ts';

/** Writes a report. */
export type Report<R> = (report: R) => void;

/** A client in a process of its own that reports its progress, one JSON text per line. Its disposal kills it. */
interface ClientProcess<R> extends AsyncDisposable {
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

/** Starts the command with the task as its last argument. The signal kills the process. */
export function startClientProcess<R>(
  task: object,
  { clientCommand, signal }: Pick<DemoOptions, 'clientCommand' | 'signal'>,
): ClientProcess<R> {
  const [program = '', ...args] = clientCommand;
  const how = {
    stdio: ['ignore', 'pipe', 'pipe'] as ['ignore', 'pipe', 'pipe'],
    signal,
    killSignal: 'SIGKILL' as const,
  };
  const child = spawn(program, [...args, JSON.stringify(task)], how);
  let complaint = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    complaint = (complaint + text).slice(-2000);
  });
  const exited = new Promise<string>((resolve) => {
    // A process that the signal has killed has an error too, before it has ended.
    child.on('error', (error) => child.pid === undefined && resolve(`an error (${error.message})`));
    child.once('close', (code, killer) => resolve(killer === null ? `code ${code}` : `signal ${killer}`));
  });
  const kill = async () => {
    child.kill('SIGKILL');
    await exited;
  };
  return {
    pid: child.pid ?? 0,
    reports: reportsOf<R>(child.stdout),
    kill,
    ended: async () => {
      const end = await exited;
      if (end !== 'code 0')
        throw new Error(`the client's process ended with ${end}: ${complaint.trim() || 'no output'}`);
    },
    [Symbol.asyncDispose]: kill,
  };
}

async function* reportsOf<R>(input: Readable): AsyncGenerator<R> {
  for await (const line of createInterface({ input })) yield JSON.parse(line) as R;
}

/** Blocks the whole event loop, like a process that is stuck in its environment, until the process is killed. */
export function standStill(): never {
  const seconds = 30;
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, seconds * 1000);
  throw new Error(`this process was not killed within ${seconds} seconds`);
}
