import { execFile, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { isSecret } from '../../src/domain/access.ts';
import { freePort } from '../support/postgres.ts';
import { programOf, readSnippets } from './snippets.ts';

const run = promisify(execFile);
const HAS_OPENSSL = spawnSync('openssl', ['version']).status === 0;

it('docs/security.md has at most 1,500 words', () => {
  expect(readFileSync('docs/security.md', 'utf8').trim().split(/\s+/u).length).toBeLessThanOrEqual(1500);
});

describe.skipIf(!HAS_OPENSSL)('docs/security.md', () => {
  it('leads from nothing to two keys over TLS', async () => {
    const snippets = readSnippets('docs/security.md');
    const port = await freePort();
    const programs = ['serve', 'keys'].map((group) => programOf(snippets, group).replaceAll('50051', `${port}`));
    const dir = mkdtempSync(path.join(os.tmpdir(), 'security-'));
    const bin = path.join(dir, 'bin');
    mkdirSync(bin);
    const program = path.resolve(import.meta.dirname, '../../bin/anabranch.js');
    writeFileSync(path.join(bin, 'anabranch'), `#!/bin/sh\nexec "${process.execPath}" "${program}" "$@"\n`);
    chmodSync(path.join(bin, 'anabranch'), 0o755);
    const env = { PATH: `${bin}:${process.env.PATH}`, HOME: dir };
    // In a group of its own, because the shell starts the server.
    const server = spawn('sh', ['-ec', programs[0]!], { cwd: dir, env, detached: true });
    try {
      let output = '';
      for (const stream of [server.stdout, server.stderr]) stream.on('data', (text) => (output += text));
      await expect.poll(() => output, { timeout: 60_000 }).toContain(`https://`);
      const { stdout } = await run('sh', ['-ec', programs[1]!], { cwd: dir, env });
      expect(stdout).toMatch(/trainer.*write.*team-a/s);
      for (const file of ['trainer.key', 'worker.key']) {
        expect(isSecret(readFileSync(path.join(dir, file), 'utf8').trim())).toBe(true);
      }
    } finally {
      const ended = once(server, 'exit');
      process.kill(-server.pid!, 'SIGTERM');
      await ended;
    }
  });
});
