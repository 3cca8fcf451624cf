/** Counts the syncs of processes, by strace. */
import { execFile } from 'node:child_process';
import { chmod, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';

export interface SyncTrace {
  /** Starts a program that is traced, with all that it starts, from its first instruction. It keeps its process id. */
  readonly wrapper: readonly string[];
  /** Calls of fsync and fdatasync that have returned without an error so far. */
  syncs(): Promise<number>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** strace stops a process only at these calls, and writes each call before the process continues. */
export async function startSyncTrace(): Promise<SyncTrace> {
  await requireStrace();
  const dir = await mkdtemp(path.join(os.tmpdir(), 'anabranch-strace-'));
  const file = path.join(dir, 'trace');
  await writeFile(file, '');
  // Postgres, and so its strace, may run as another user.
  await chmod(dir, 0o711);
  await chmod(file, 0o666);
  return {
    wrapper: ['strace', '-D', '-f', '--seccomp-bpf', '-o', file, '-e', 'trace=fsync,fdatasync'],
    async syncs() {
      const lines = (await readFile(file, 'utf8')).split('\n');
      return lines.filter((line) => /sync.*= 0/u.test(line)).length;
    },
    [Symbol.asyncDispose]: () => rm(dir, { recursive: true, force: true }),
  };
}

async function requireStrace(): Promise<void> {
  await promisify(execFile)('strace', ['-V']).catch((cause: Error) => {
    throw new Error('strace is needed to count what reaches the disk: install it (apt-get install strace)', { cause });
  });
}
