import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import process from 'node:process';
import { text } from 'node:stream/consumers';
import { withInitialHeap } from '../src/initial_heap.ts';

export type ProgramName =
  | 'append'
  | 'archive'
  | 'request'
  | 'run_sql'
  | 'branch'
  | 'claims'
  | 'driver'
  | 'environments'
  | 'first_step'
  | 'follow'
  | 'greedy'
  | 'metrics'
  | 'neighbour'
  | 'read'
  | 'rollout_sql'
  | 'state'
  | 'store_checkpoints'
  | 'store_states'
  | 'use_case'
  | 'waiting'
  | 'writer';

/** Runs a program of the bench in a process of its own. Returns its figures. */
export async function runProgram<Figures>(name: ProgramName, settings: object): Promise<Figures> {
  return figuresOf<Figures>([process.execPath, programPath(name)], settings);
}

/** Returns the Python in the venv of the tests of the Python client. Undefined if the venv does not exist. */
export function pythonPath(): string | undefined {
  const found = path.join(ROOT, 'node_modules/.cache/anabranch-tools/python-sdk/bin/python');
  return existsSync(found) ? found : undefined;
}

/** Runs a task of bench/python/program.py in a process of its own. Returns its figures. */
export async function runPython<Figures>(settings: object): Promise<Figures> {
  return figuresOf<Figures>([pythonPath()!, path.join(import.meta.dirname, 'python/program.py')], settings);
}

async function figuresOf<Figures>([command, program]: readonly [string, string], settings: object): Promise<Figures> {
  const child = spawn(command, [program, JSON.stringify(settings)], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, PYTHONPATH: path.join(ROOT, 'clients/python/src') },
  });
  const [figures, [code]] = await Promise.all([text(child.stdout), once(child, 'exit') as Promise<[number | null]>]);
  if (code !== 0) throw new Error(`${path.relative(ROOT, program)} ended with code ${code}`);
  return JSON.parse(figures) as Figures;
}

const ROOT = path.resolve(import.meta.dirname, '..');

export interface SpawnedServer {
  readonly address: string;
  readonly pid: number;
  stop(): Promise<void>;
}

/**
 * Starts bench/programs/server.ts with this process's Node options, and those that the service gives itself. With
 * `profileDir`, the server writes a CPU profile there.
 */
export async function spawnServer(settings: object, profileDir: string | undefined): Promise<SpawnedServer> {
  const own = { nodeArgs: process.execArgv, nodeOptions: process.env.NODE_OPTIONS };
  const nodeArgs = withInitialHeap({ ...own, memoryLimit: process.constrainedMemory() }) ?? process.execArgv;
  const profile = profileDir === undefined ? [] : ['--cpu-prof', `--cpu-prof-dir=${profileDir}`];
  const child = spawn(process.execPath, [...nodeArgs, ...profile, programPath('server'), JSON.stringify(settings)], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  const line = await Promise.race([once(child.stdout, 'data'), exited]);
  if (!Buffer.isBuffer(line[0])) throw new Error('the server of the bench ended before it listened');
  const { port } = JSON.parse(line[0].toString()) as { port: number };
  return {
    address: `127.0.0.1:${port}`,
    pid: pidOf(child),
    stop: async () => {
      child.stdin.end();
      await exited;
    },
  };
}

export function pidOf(child: ChildProcess): number {
  if (child.pid === undefined) throw new Error('a process did not start');
  return child.pid;
}

/** Returns the CPU seconds that processes and their descendants have used. NaN without /proc. */
export function cpuSeconds(pids: readonly number[]): number {
  try {
    const stats = allStats();
    return pids.flatMap((pid) => family(pid, stats)).reduce((sum, { ticks }) => sum + ticks, 0) / TICKS_PER_SECOND;
  } catch {
    return Number.NaN;
  }
}

/** Returns the CPU seconds that the whole machine has used. NaN without /proc. */
export function machineCpuSeconds(): number {
  try {
    const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0] = readFileSync('/proc/stat', 'latin1')
      .split('\n')[0]!
      .split(/\s+/)
      .slice(1)
      .map(Number);
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND;
  } catch {
    return Number.NaN;
  }
}

/** The unit of CPU time in Linux, on every platform that Node supports. */
const TICKS_PER_SECOND = 100;

interface Stat {
  readonly pid: number;
  readonly parent: number;
  readonly ticks: number;
}

function allStats(): Stat[] {
  const stats: Stat[] = [];
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const fields = readFileSync(`/proc/${name}/stat`, 'latin1').split(') ').at(-1)!.split(' ');
      // Own time, and time of ended children.
      const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0);
      stats.push({ pid: Number(name), parent: Number(fields[1]), ticks });
    } catch {
      // The process ended in the meantime.
    }
  }
  return stats;
}

function family(pid: number, stats: readonly Stat[]): Stat[] {
  const own = stats.filter((stat) => stat.pid === pid);
  const children = stats.filter((stat) => stat.parent === pid);
  return [...own, ...children.flatMap((child) => family(child.pid, stats))];
}

function programPath(name: string): string {
  return path.join(import.meta.dirname, 'programs', `${name}.ts`);
}
