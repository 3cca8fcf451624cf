import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { isSecret } from '../../src/domain/access.ts';
import { freePort } from '../support/free_port.ts';
import { openShell } from './shell.ts';
import { programOf, readSnippets } from './snippets.ts';

const HAS_OPENSSL = spawnSync('openssl', ['version']).status === 0;

it('docs/security.md has at most 1,500 words', () => {
  expect(readFileSync('docs/security.md', 'utf8').trim().split(/\s+/u).length).toBeLessThanOrEqual(1500);
});

describe.skipIf(!HAS_OPENSSL)('docs/security.md', () => {
  it('leads from nothing to two keys over TLS', async () => {
    const snippets = readSnippets('docs/security.md');
    const port = await freePort();
    const programs = ['serve', 'keys'].map((group) => programOf(snippets, group).replaceAll('50051', `${port}`));
    await using shell = openShell();
    const stop = await shell.serve(programs[0]!, 'https://');
    try {
      expect(await shell.run(programs[1]!)).toMatch(/trainer.*write.*team-a/s);
      for (const file of ['trainer.key', 'worker.key']) {
        expect(isSecret(readFileSync(path.join(shell.folder, file), 'utf8').trim())).toBe(true);
      }
    } finally {
      await stop();
    }
  });
});
