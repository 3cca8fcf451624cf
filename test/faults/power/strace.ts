/** Counts the syncs of processes, by strace. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { exitOf } from '../../support/janitor.ts';

const run = promisify(execFile);

export interface SyncCount {
  /** Calls of fsync and fdatasync that returned without an error. */
  readonly syncs: number;
}

/** Counts the syncs of these processes, and of all that they start meanwhile, during some work. */
export async function countSyncs(pids: readonly number[], work: () => Promise<void>): Promise<SyncCount> {
  await requireStrace();
  const dir = await mkdtemp(path.join(os.tmpdir(), 'anabranch-strace-'));
  const file = path.join(dir, 'trace');
  const attach = pids.flatMap((pid) => ['-p', String(pid)]);
  const strace = spawn('strace', ['-f', '-o', file, '-e', 'trace=fsync,fdatasync', ...attach], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  try {
    await attached(strace, pids);
    await work();
    strace.kill('SIGINT');
    await exitOf(strace);
    const lines = (await readFile(file, 'utf8')).split('\n');
    return { syncs: lines.filter((line) => /sync.*= 0/u.test(line)).length };
  } finally {
    strace.kill('SIGKILL');
    await rm(dir, { recursive: true, force: true });
  }
}

async function requireStrace(): Promise<void> {
  await run('strace', ['-V']).catch((cause: Error) => {
    throw new Error('strace is needed to count what reaches the disk: install it (apt-get install strace)', { cause });
  });
}

/** Resolves when every thread of the processes is traced. */
async function attached(strace: ChildProcess, pids: readonly number[]): Promise<void> {
  const wanted = new Set(pids);
  const output: string[] = [];
  for await (const line of createInterface(strace.stderr!)) {
    output.push(line);
    const [, watched, ended] = /Process (\d+) attached|, (\d+)\): No such process/u.exec(line) ?? [];
    wanted.delete(Number(watched ?? ended));
    if (wanted.size === 0) {
      strace.stderr!.resume();
      return;
    }
  }
  throw new Error(`strace could not watch the processes ${pids.join(', ')}:\n${output.join('\n')}`);
}

/** A process and all its descendants. Some may end while they are listed. */
export async function familyOf(pid: number): Promise<number[]> {
  const tasks = await readdir(`/proc/${pid}/task`).catch(() => []);
  const lists = tasks.map((task) => readFile(`/proc/${pid}/task/${task}/children`, 'utf8').catch(() => ''));
  const children = (await Promise.all(lists))
    .flatMap((list) => list.trim().split(/\s+/u))
    .filter((text) => text !== '');
  const below = await Promise.all(children.map((child) => familyOf(Number(child))));
  return [pid, ...below.flat()];
}
