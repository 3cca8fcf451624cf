/** Runs command lines inside the test's process: the real commands against real servers, with an output that can be read. */
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { Writable } from 'node:stream';
import type { Output } from '../../src/cli/context.ts';
import { run } from '../../src/cli/program.ts';

const MAIN = path.resolve(import.meta.dirname, '../../src/main.ts');

export interface CliOptions {
  /** Write to a terminal of 80 columns instead of a pipe. */
  readonly terminal?: boolean;
  readonly env?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
  /** Told of all that was written to stdout so far, whenever there is more. */
  readonly onOutput?: (soFar: string) => void;
}

export interface CliResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

export async function runCli(args: readonly string[], options: CliOptions = {}): Promise<CliResult> {
  const stdout = new Recorder(options.terminal === true, options.onOutput);
  const stderr = new Recorder(options.terminal === true);
  const code = await run(args, {
    env: options.env ?? {},
    cwd: os.tmpdir(),
    fileLimit: () => undefined,
    self: [process.execPath, MAIN],
    stdout,
    stderr,
    signal: options.signal ?? new AbortController().signal,
  });
  return { code, stdout: stdout.text, stderr: stderr.text };
}

class Recorder extends Writable implements Output {
  text = '';
  readonly isTTY: boolean;
  readonly columns = 80;
  readonly #onOutput: ((soFar: string) => void) | undefined;

  constructor(isTTY: boolean, onOutput?: (soFar: string) => void) {
    super({ decodeStrings: false });
    this.isTTY = isTTY;
    this.#onOutput = onOutput;
  }

  override _write(chunk: string | Buffer, _encoding: string, done: () => void): void {
    this.text += String(chunk);
    this.#onOutput?.(this.text);
    done();
  }
}
