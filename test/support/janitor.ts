import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';

/** Cleans up after this process, even if it is killed: runs `script` in a shell once this process is gone or `dismiss` is called. */
export interface Janitor {
  /** Lets it do its work now; resolves when done. */
  dismiss(): Promise<void>;
  /** Ends it without doing its work. */
  cancel(): void;
}

/** The script finds `args` as $1, $2, …. Our end of a pipe tells it that we are gone, however we went. */
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

/** Resolves when a child has ended, also if it had before. */
export async function exitOf(child: ChildProcess): Promise<void> {
  child.ref();
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
}

/** A child that nobody stopped does not keep this process alive. */
export function letGo(child: ChildProcess): void {
  child.unref();
  for (const stream of child.stdio) {
    if (stream && 'unref' in stream && typeof stream.unref === 'function') stream.unref();
  }
}
