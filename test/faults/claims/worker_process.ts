import { spawn } from 'node:child_process';
import { once } from 'node:events';
import process from 'node:process';
import { createInterface } from 'node:readline';
import { letGo, startJanitor } from '../../support/janitor.ts';
import { programFile } from '../../support/program.ts';
import type { Entry, Journal } from './journal.ts';
import type { WorkerPlan } from './worker.ts';

export interface WorkerProcess {
  readonly name: string;
  readonly running: boolean;
  /** Resolves, with its exit, when it has ended and all its reports were read. */
  readonly ended: Promise<NodeJS.Signals | number>;
  owns(worker: string): boolean;
  signal(name: 'SIGKILL' | 'SIGSTOP' | 'SIGCONT'): void;
}

/** Starts it; its reports go into the journal. It does not outlive this process. */
export function startWorkers(plan: WorkerPlan, journal: Journal): WorkerProcess {
  const child = spawn(process.execPath, [programFile('test/faults/claims/worker.ts'), JSON.stringify(plan)], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const janitor = startJanitor('kill -KILL "$1"', [String(child.pid)]);
  letGo(child);
  const errors: string[] = [];
  createInterface(child.stdout).on('line', (line) => journal.add(JSON.parse(line) as Entry));
  createInterface(child.stderr).on('line', (line) => errors.push(line));
  let running = true;
  const ended = once(child, 'close').then(() => {
    running = false;
    janitor.cancel();
    if (child.exitCode !== null && child.exitCode !== 0)
      journal.add({ what: 'surprise', worker: plan.name, text: errors.join('\n') });
    return child.signalCode ?? child.exitCode ?? 0;
  });
  return {
    name: plan.name,
    get running() {
      return running;
    },
    ended,
    owns: (worker) => worker.startsWith(`${plan.name}-`),
    signal: (name) => void child.kill(name),
  };
}
