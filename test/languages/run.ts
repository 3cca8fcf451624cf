import { execFile } from 'node:child_process';

export interface RunOptions {
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly stdin?: string;
  readonly minutes?: number;
}

/** Runs a program to its end and returns its output; if it fails, the error contains all of its output. */
export function run(program: string, args: readonly string[], options: RunOptions = {}): Promise<string> {
  const { cwd, stdin, minutes = 1 } = options;
  const env = { ...process.env, ...options.env };
  return new Promise((resolve, reject) => {
    const limits = { timeout: minutes * 60_000, maxBuffer: 64 * 1024 * 1024, killSignal: 'SIGKILL' as const };
    const child = execFile(program, args, { ...limits, cwd, env }, (error, stdout, stderr) => {
      if (error === null) return resolve(stdout);
      const how = error.killed ? `did not end within ${minutes} minutes` : `failed (${error.code ?? error.message})`;
      reject(new Error(`${program} ${args.join(' ')} ${how}\n${stdout}${stderr}`));
    });
    // A program may end before it reads its input.
    child.stdin?.on('error', () => undefined).end(stdin ?? '');
  });
}
