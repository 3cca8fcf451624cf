import path from 'node:path';
import { expect, it } from 'vitest';
import { findPython, venvOf } from './python_versions.ts';
import { run } from './run.ts';

const FOLDER = path.resolve(import.meta.dirname, '../../clients/python');

it('the Python package installs in each documented way into a fresh venv', { timeout: 900_000 }, async ({ skip }) => {
  const python = (await findPython('3.12')) ?? skip('this machine has no Python 3.12');
  const own = await venvOf(python, '3.12', 'highest', ['build', 'pytest']);
  const args = ['-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'packaging', 'tests/test_packaging.py'];
  const printed = await run(own, args, { cwd: FOLDER, minutes: 12 });
  expect(printed).toMatch(/^9 passed/mu);
});
