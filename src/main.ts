import process from 'node:process';
import { run } from './cli/program.ts';

/** The process: what a command may see of it, how it is asked to stop, and how it ends. No other file of the service touches `process`. */

const EXIT_AFTER_MS = 1_000;
const stop = new AbortController();
let faulted = false;

for (const [signal, code] of [
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const) {
  process.on(signal, () => {
    if (stop.signal.aborted) process.exit(code); // asked twice: at once
    stop.abort();
  });
}

// Whatever was thrown where nobody caught it has left things in an unknown state: let go of them in order, and end.
process.on('uncaughtException', (error) => {
  process.stderr.write(`A fault of the program; it ends.\n${error.stack ?? String(error)}\n`);
  if (faulted) process.exit(1);
  faulted = true;
  stop.abort();
});

// The reader of a pipe has seen enough (`anabranch tree | head`).
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0);
  throw error;
});

/** The soft limit. Node raises it to the hard limit when it starts. */
function fileLimit(): number | undefined {
  const report = process.report.getReport() as { userLimits?: { open_files?: { soft: number | 'unlimited' } } };
  const soft = report.userLimits?.open_files?.soft;
  return soft === 'unlimited' ? undefined : soft;
}

const code = await run(process.argv.slice(2), {
  env: process.env,
  cwd: process.cwd(),
  fileLimit,
  self: [process.execPath, process.argv[1] ?? ''],
  stdout: process.stdout,
  stderr: process.stderr,
  signal: stop.signal,
});
process.exitCode = faulted ? 1 : code;
// Everything is let go of, so the process ends by itself; should something still hold it, it ends all the same.
setTimeout(() => process.exit(), EXIT_AFTER_MS).unref();
