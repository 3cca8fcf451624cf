/**
 * The process as a command sees it. `main.ts` fills it in once; tests fill in their own. A command is a function of it:
 * `export function treeCommand(cli: CliContext): Command`, added to the program with one line.
 */
export interface CliContext {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly cwd: string;
  /** How many files the process may have open at once; undefined if the system does not say. */
  readonly fileLimit: () => number | undefined;
  /** The program and arguments that start this command line again in another process: `[execPath, script]`. */
  readonly self: readonly string[];
  readonly stdout: Output;
  readonly stderr: Output;
  /** Aborted by the first SIGINT or SIGTERM: finish what must be finished, and return. */
  readonly signal: AbortSignal;
}

/** Where text goes. A terminal has `isTTY` and `columns`; a pipe or a file has neither. */
export type Output = NodeJS.WritableStream & { readonly isTTY?: boolean; readonly columns?: number };

/**
 * A failure that was explained: its message is all that is printed, without a stack. Whatever else a command throws is a fault of the
 * program.
 */
export class CliError extends Error {
  override readonly name = 'CliError';
  /** 1: it did not work. 2: the command line cannot be understood. */
  readonly exitCode: 1 | 2;

  constructor(message: string, options: { readonly exitCode?: 1 | 2; readonly cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.exitCode = options.exitCode ?? 1;
  }
}
