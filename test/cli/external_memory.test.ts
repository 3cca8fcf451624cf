import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import process from 'node:process';
import { expect, it } from 'vitest';

it('the option that counts buffers as heap exists in this version of Node', () => {
  const [option = ''] = readFileSync('src/external_memory.ts', 'utf8').match(/--[a-z-]+/) ?? [];
  expect(option).toMatch(/^--external/);
  expect(execFileSync(process.execPath, ['--v8-options'], { encoding: 'utf8' })).toContain(`  ${option} (`);
});
