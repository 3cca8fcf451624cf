import path from 'node:path';
import { expect, it } from 'vitest';
import { run } from '../../test/languages/run.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const TSC = path.join(ROOT, 'node_modules/.bin/tsc');

// `npm run types` runs where the frameworks are not installed.
it.each(['integrations/src', 'integrations'])('%s has the types of the frameworks', async (project) => {
  const args = ['-p', project, '--noEmit', '--checkers', '1'];
  expect(await run(TSC, args, { cwd: ROOT, minutes: 5 })).toBe('');
});
