import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { expect, it } from 'vitest';

const SCRIPT = path.resolve(import.meta.dirname, '../../clients/python/test');

it('the Python client loses nothing when it is killed, when servers restart and when they are away', {
  timeout: 1_200_000,
}, async () => {
  const pytest = spawn(SCRIPT, ['-m', 'faults'], { stdio: ['ignore', 'inherit', 'inherit'] });
  expect(await once(pytest, 'exit')).toEqual([0, null]);
});
