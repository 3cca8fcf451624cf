/** Runs commands of documents in a shell, in which `anabranch` is the program of this checkout. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import { programFile } from '../support/program.ts';

export interface Shell {
  /** The working directory, which begins empty. */
  readonly folder: string;
  /** Runs lines to their end, and returns what they print. Throws if one fails. */
  run(lines: string): Promise<string>;
  /** Starts lines of which the last one is a server, and waits until its output has a text. Returns what stops it. */
  serve(lines: string, text: string): Promise<() => Promise<void>>;
  [Symbol.asyncDispose](): Promise<void>;
}

export function openShell(settings: Readonly<Record<string, string>> = {}): Shell {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'anabranch-shell-'));
  const bin = path.join(folder, 'bin');
  mkdirSync(bin);
  writeFileSync(
    path.join(bin, 'anabranch'),
    `#!/bin/sh\nexec "${process.execPath}" "${programFile('src/main.ts')}" "$@"\n`,
  );
  chmodSync(path.join(bin, 'anabranch'), 0o755);
  const env = { HOME: folder, ...settings, PATH: `${bin}:${settings.PATH ?? process.env.PATH}` };
  return {
    folder,
    run: async (lines) => (await promisify(execFile)('sh', ['-ec', lines], { cwd: folder, env })).stdout,
    async serve(lines, text) {
      // In a group of its own, because the shell starts the server.
      const server = spawn('sh', ['-ec', lines], { cwd: folder, env, detached: true });
      const ended = once(server, 'exit');
      let output = '';
      for (const stream of [server.stdout, server.stderr]) stream.on('data', (chunk) => (output += chunk));
      const stop = async () => {
        if (server.exitCode === null) process.kill(-server.pid!, 'SIGTERM');
        await ended;
      };
      await expect.poll(() => output, { timeout: 60_000 }).toContain(text);
      return stop;
    },
    [Symbol.asyncDispose]: () => rm(folder, { recursive: true, force: true }),
  };
}
