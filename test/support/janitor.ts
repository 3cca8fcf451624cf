import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';

/**
 * Cleans up after this process, even if it is killed: runs `script` in a shell once this process has ended or `dismiss`
 * is called.
 */
export interface Janitor {
  /** Runs the script now; resolves when it has ended. */
  dismiss(): Promise<void>;
  /** Ends it without running the script. */
  cancel(): void;
}

/** The script gets `args` as $1, $2, …. The end of a pipe tells it that this process has ended, in any way. */
export function startJanitor(script: string, args: readonly string[]): Janitor {
  const shell = spawn('/bin/sh', ['-c', `cat >/dev/null\n${script}`, 'janitor', ...args], {
    cwd: '/',
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  });
  letGo(shell);
  return {
    async dismiss() {
      const exited = exitOf(shell);
      shell.stdin.end();
      await exited;
    },
    cancel() {
      shell.kill('SIGKILL');
    },
  };
}

/** Resolves when a child has ended, also if it ended before. Throws when the signal is aborted. */
export async function exitOf(child: ChildProcess, signal?: AbortSignal): Promise<void> {
  child.ref();
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit', signal && { signal });
}

/** A child that nobody stopped does not keep this process alive. */
export function letGo(child: ChildProcess): void {
  child.unref();
  for (const stream of child.stdio) {
    if (stream && 'unref' in stream && typeof stream.unref === 'function') stream.unref();
  }
}
