import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

/** A client in a process of its own, which tells what it does: one JSON text a line. */
export interface ReportingProcess<Report> {
  readonly pid: number;
  /** What it reports, in order, until its output ends. */
  readonly reports: AsyncIterable<Report>;
  /** SIGKILL: it can neither finish nor clean up anything. Resolves when it is gone; does no harm to one that is gone. */
  kill(): Promise<void>;
  /** Resolves when it ended by itself as it should; rejects with what it said otherwise. */
  ended(): Promise<void>;
}

/** Starts `command` with the task as its last argument. */
export function startReportingProcess<Report>(command: readonly string[], task: object): ReportingProcess<Report> {
  const [program = '', ...args] = command;
  const child = spawn(program, [...args, JSON.stringify(task)], { stdio: ['ignore', 'pipe', 'pipe'] });
  let complaint = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    complaint = (complaint + text).slice(-2000);
  });
  const exited = exitOf(child);
  return {
    pid: child.pid ?? 0,
    reports: reportsOf<Report>(child),
    kill: async () => {
      child.kill('SIGKILL');
      await exited;
    },
    ended: async () => {
      const how = await exited;
      if (how !== 'code 0') throw new Error(`the client's process ended with ${how}: ${complaint.trim() || 'no word'}`);
    },
  };
}

/** However the work ends, no process is left behind. */
export async function withProcess<Report>(
  process: ReportingProcess<Report>,
  signal: AbortSignal,
  work: (process: ReportingProcess<Report>) => Promise<void>,
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

/** Blocks the whole event loop, as a process does that is stuck in its environment, and waits for whoever kills it. */
export function standStill(): never {
  const seconds = 30;
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, seconds * 1000);
  throw new Error(`nobody killed this process within ${seconds} seconds, which is what it waited for`);
}

/** `code 0`, `signal SIGKILL`, or why it did not even start. */
function exitOf(child: ChildProcess): Promise<string> {
  return new Promise((resolve) => {
    child.once('error', (error) => resolve(`an error (${error.message})`));
    child.once('close', (code, signal) => resolve(signal === null ? `code ${code}` : `signal ${signal}`));
  });
}

async function* reportsOf<Report>({ stdout }: ChildProcess): AsyncGenerator<Report> {
  if (stdout === null) return;
  for await (const line of createInterface({ input: stdout })) yield JSON.parse(line) as Report;
}
