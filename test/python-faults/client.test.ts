import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { expect, it } from 'vitest';

const SCRIPT = path.resolve(import.meta.dirname, '../../clients/python/test');

it('the Python client loses nothing when it is killed, when servers restart and when they are away', {
  timeout: 1_200_000,
}, async () => {
  expect(await pytest('-m', 'faults')).toEqual([0, null]);
});

it('the Python client stores more and larger values than its tests usually try', { timeout: 600_000 }, async () => {
  expect(await pytest('tests/test_values.py', 'tests/test_limits.py')).toEqual([0, null]);
});

/** Runs tests of the Python client, which take their dose from TEST_DOSE, too. Returns the exit code and signal. */
function pytest(...args: string[]): Promise<unknown[]> {
  return once(spawn(SCRIPT, args, { stdio: ['ignore', 'inherit', 'inherit'] }), 'exit');
}
