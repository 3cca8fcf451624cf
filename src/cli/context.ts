import type { ServerDeps } from '../server.ts';

/**
 * The process as a command sees it. `main.ts` creates it once; tests create their own. A command is a function of it:
 * `export function treeCommand(cli: CliContext): Command`. The program adds each command with one line.
 */
export interface CliContext {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly cwd: string;
  /** Returns how many files the process may have open at once. Undefined if the system does not say. */
  readonly fileLimit: () => number | undefined;
  /** The program and arguments that start this command line in another process: `[execPath, script]`. */
  readonly self: readonly string[];
  /** Source of answers to questions. Undefined if the process has no standard input. */
  readonly stdin?: Input | undefined;
  readonly stdout: Output;
  readonly stderr: Output;
  /**
   * Aborted by the first SIGINT or SIGTERM, with the name of the signal. Commands then finish open work and return.
   */
  readonly signal: AbortSignal;
  /** Calls the listener at each SIGHUP, which ends the process otherwise. Undefined: nobody sends it. */
  readonly onHangup?: ((listener: () => void) => void) | undefined;
  /** For programs that run many commands: see ServerDeps. */
  readonly validator?: ServerDeps['validator'];
}

export type Input = NodeJS.ReadableStream & { readonly isTTY?: boolean };

/** A destination of text. A terminal has `isTTY`, `columns` and `rows`; a pipe or a file has none of them. */
export type Output = NodeJS.WritableStream & {
  readonly isTTY?: boolean;
  readonly columns?: number;
  readonly rows?: number;
};

/**
 * An error that is explained to the user. Only its message is printed, without a stack. Any other error that a command
 * throws is a defect of the program.
 */
export class CliError extends Error {
  override readonly name = 'CliError';
  readonly exitCode: 1 | 2 = 1;
}

/** The command line is invalid. */
export class UsageError extends CliError {
  override readonly exitCode = 2;
}
