import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { VariantReport, VariantTask } from './variant_client.ts';

/** A variant's client in a process of its own. */
export interface VariantProcess {
  readonly pid: number;
  /** What it reports, in order, until its output ends. */
  readonly reports: AsyncIterable<VariantReport>;
  /** SIGKILL: it can neither finish nor clean up anything. Resolves when it is gone; does no harm to one that is gone. */
  kill(): Promise<void>;
  /** Resolves when it ended by itself as it should; rejects with what it said otherwise. */
  ended(): Promise<void>;
}

/** Starts `command` with the task as its last argument. */
export function startVariantProcess(command: readonly string[], task: VariantTask): VariantProcess {
  const [program = '', ...args] = command;
  const child = spawn(program, [...args, JSON.stringify(task)], { stdio: ['ignore', 'pipe', 'pipe'] });
  let complaint = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    complaint = (complaint + text).slice(-2000);
  });
  const exited = exitOf(child);
  return {
    pid: child.pid ?? 0,
    reports: reportsOf(child),
    kill: async () => {
      child.kill('SIGKILL');
      await exited;
    },
    ended: async () => {
      const how = await exited;
      if (how !== 'code 0')
        throw new Error(`the variant's process ended with ${how}: ${complaint.trim() || 'no word'}`);
    },
  };
}

/** `code 0`, `signal SIGKILL`, or why it did not even start. */
function exitOf(child: ChildProcess): Promise<string> {
  return new Promise((resolve) => {
    child.once('error', (error) => resolve(`an error (${error.message})`));
    child.once('close', (code, signal) => resolve(signal === null ? `code ${code}` : `signal ${signal}`));
  });
}

async function* reportsOf({ stdout }: ChildProcess): AsyncGenerator<VariantReport> {
  if (stdout === null) return;
  for await (const line of createInterface({ input: stdout })) yield JSON.parse(line) as VariantReport;
}
