import { execFile } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import process from 'node:process';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

interface ProcessRow {
  readonly pid: number;
  readonly parent: number;
  /** A zombie: dead, but not yet collected by its parent (PID 1 of a container may take its time). */
  readonly dead: boolean;
}

/** SIGKILL for a process and all below it; resolves when none of them runs any more. */
export async function killTree(root: number): Promise<void> {
  // Stopped first: a stopped process cannot start another child between the listing and the kill.
  signal(root, 'SIGSTOP');
  const doomed = [root, ...descendants(root, await processes())];
  for (const pid of doomed) signal(pid, 'SIGKILL');
  await allGone(doomed);
}

async function allGone(pids: readonly number[]): Promise<void> {
  const deadline = Date.now() + 10_000;
  for (;;) {
    const alive = new Set((await processes()).filter((row) => !row.dead).map((row) => row.pid));
    const left = pids.filter((pid) => alive.has(pid));
    if (left.length === 0) return;
    if (Date.now() > deadline) throw new Error(`Processes ${left.join(', ')} still run 10 s after SIGKILL`);
    await delay(5);
  }
}

function descendants(root: number, rows: readonly ProcessRow[]): number[] {
  const children = rows.filter((row) => row.parent === root).map((row) => row.pid);
  return children.flatMap((child) => [child, ...descendants(child, rows)]);
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

async function processes(): Promise<ProcessRow[]> {
  return process.platform === 'linux' ? fromProc() : fromPs();
}

async function fromProc(): Promise<ProcessRow[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  const rows = await Promise.all(
    pids.map(async (pid) => {
      const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined); // gone since we listed it
      const fields = stat?.slice(stat.lastIndexOf(')') + 2).split(' ');
      return fields && { pid: Number(pid), parent: Number(fields[1]), dead: fields[0] === 'Z' || fields[0] === 'X' };
    }),
  );
  return rows.filter((row) => row !== undefined);
}

async function fromPs(): Promise<ProcessRow[]> {
  const { stdout } = await run('ps', ['-A', '-o', 'pid=,ppid=,stat=']);
  return stdout
    .trim()
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .map(([pid, parent, stat]) => ({ pid: Number(pid), parent: Number(parent), dead: stat?.startsWith('Z') ?? false }));
}
