/** Runs command lines inside the process of the test: the real commands with real servers, with captured output. */
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { Writable } from 'node:stream';
import { stripVTControlCharacters } from 'node:util';
import { expect } from 'vitest';
import type { CliContext, Output } from '../../src/cli/context.ts';
import { run } from '../../src/cli/program.ts';
import { sharedValidator } from '../support/shared_validator.ts';

const MAIN = path.resolve(import.meta.dirname, '../../src/main.ts');

export interface CliOptions extends Pick<CliContext, 'onHangup' | 'stdin'> {
  /** Whether output goes to a terminal instead of a pipe. */
  readonly terminal?: boolean;
  /** The width of the terminal. Default 80. A pipe has none. */
  readonly columns?: number;
  readonly env?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
  /** Called with all that was written to stdout so far, on every write. */
  readonly onOutput?: (soFar: string) => void;
}

export interface CliResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

export async function runCli(args: readonly string[], options: CliOptions = {}): Promise<CliResult> {
  const stdout = new Recorder(options);
  const { onOutput: _, ...withoutListener } = options;
  const stderr = new Recorder(withoutListener);
  const code = await run(args, {
    env: options.env ?? {},
    cwd: os.tmpdir(),
    fileLimit: () => undefined,
    self: [process.execPath, MAIN],
    stdin: options.stdin,
    stdout,
    stderr,
    onHangup: options.onHangup,
    signal: options.signal ?? new AbortController().signal,
    validator: sharedValidator(),
  });
  return { code, stdout: stdout.text, stderr: stderr.text };
}

class Recorder extends Writable implements Output {
  text = '';
  readonly isTTY: boolean;
  /** A pipe has none. */
  readonly columns?: number;
  readonly #onOutput: ((soFar: string) => void) | undefined;

  constructor({ terminal = false, columns = 80, onOutput }: CliOptions) {
    super({ decodeStrings: false });
    this.isTTY = terminal;
    if (terminal) this.columns = columns;
    this.#onOutput = onOutput;
  }

  override _write(chunk: string | Buffer, _encoding: string, done: () => void): void {
    this.text += String(chunk);
    this.#onOutput?.(this.text);
    done();
  }
}

/** Returns what was drawn on a terminal, without the link to the page below. Expects that link. */
export function withoutPageLink(stdout: string, link: string): string {
  const [drawing = '', last = ''] = stdout.split(/\n(?=[^\n]*Page: )/);
  expect(stripVTControlCharacters(last)).toBe(`Page: ${link}\n`);
  return drawing;
}
