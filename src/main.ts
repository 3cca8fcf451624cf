import process from 'node:process';
import { countExternalMemoryAsHeap } from './external_memory.ts';
import { limitToThisThread, withInitialHeap } from './initial_heap.ts';

/** Creates the command's view of the process, handles signals and exit. No other file of the service uses `process`. */

const EXIT_AFTER_MS = 1_000;
const stop = new AbortController();
let faulted = false;

startServerAgain();
countExternalMemoryAsHeap(process.versions.node);
limitToThisThread(process.execArgv);

for (const [signal, code] of [
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const) {
  process.on(signal, () => {
    if (stop.signal.aborted) process.exit(code); // a second signal exits at once
    stop.abort(signal);
  });
}

// After an uncaught error the state of the process is unknown: stop in order and exit.
process.on('uncaughtException', (error) => {
  process.stderr.write(`Internal error. The program stops.\n${error.stack ?? String(error)}\n`);
  if (faulted) process.exit(1);
  faulted = true;
  stop.abort();
});

// The reader of a pipe has closed it (`anabranch tree | head`).
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0);
  throw error;
});

/**
 * Replaces a server by itself, with flags of Node. Process id, working directory, environment and streams stay the
 * same. No signal is lost: until the new process has its handlers, signals end it. A channel to the parent process
 * would be lost, so a server that has one continues without the flags.
 */
function startServerAgain(): void {
  if (process.argv[2] !== 'serve' || process.execve === undefined || process.channel !== undefined) return;
  const memoryLimit = process.constrainedMemory();
  const nodeArgs = withInitialHeap({ nodeArgs: process.execArgv, nodeOptions: process.env.NODE_OPTIONS, memoryLimit });
  if (nodeArgs === undefined) return;
  process.execve(process.execPath, [process.argv0, ...nodeArgs, ...process.argv.slice(1)]);
}

/** Returns the soft limit of open files. Node raises it to the hard limit when it starts. */
function fileLimit(): number | undefined {
  const report = process.report.getReport() as { userLimits?: { open_files?: { soft: number | 'unlimited' } } };
  const soft = report.userLimits?.open_files?.soft;
  return soft === 'unlimited' ? undefined : soft;
}

// Loaded after the start of the server, which would otherwise load it twice.
const { run } = await import('./cli/program.ts');
const code = await run(process.argv.slice(2), {
  env: process.env,
  cwd: process.cwd(),
  fileLimit,
  self: [process.execPath, process.argv[1] ?? ''],
  stdin: process.stdin,
  stdout: process.stdout,
  stderr: process.stderr,
  signal: stop.signal,
  onHangup: (listener) => process.on('SIGHUP', listener),
});
process.exitCode = faulted ? 1 : code;
// Everything is closed, so the process ends by itself. The timer ends it if something still keeps it alive.
setTimeout(() => process.exit(), EXIT_AFTER_MS).unref();
