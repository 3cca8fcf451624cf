import path from 'node:path';
import { expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { findPython, venvOf } from './python_versions.ts';
import { run } from './run.ts';
import { compileOnce, contentsOf } from './tools.ts';

const FOLDER = path.resolve(import.meta.dirname, '../../clients/python');

/** The usual dose takes one way of each kind: a built wheel, a link to the sources, a source distribution. */
const USUAL = ['from_the_checkout', 'editable', 'from_the_wheel_of_a_source_distribution'];
const ALL = 9;

/** What the tests read: the package, and their own files. */
const PACKAGE = ['clients/python', 'gen/python', '.gitignore', ':(exclude)clients/python/tests'];
const OWN = ['clients/python/tests/test_packaging.py', 'clients/python/tests/conftest.py'];

it('the Python package installs in each documented way into a fresh venv', { timeout: 900_000 }, async ({ skip }) => {
  const python = (await findPython('3.12')) ?? skip('this machine has no Python 3.12');
  const own = await venvOf(python, '3.12', 'highest', ['build', 'pytest']);
  const installed = await run(own, ['-m', 'pip', 'freeze', '--all', '--disable-pip-version-check']);
  const sources = [...(await contentsOf(...PACKAGE)), ...(await contentsOf(...OWN))];
  await compileOnce('python-packaging', [own, installed, ...USUAL, ...sources], async () => {
    const tests = dose(
      USUAL.map((name) => `tests/test_packaging.py::test_${name}`),
      ['tests/test_packaging.py'],
    );
    const args = ['-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'packaging', ...tests];
    const printed = await run(own, args, { cwd: FOLDER, minutes: 12 });
    expect(Number(/^(\d+) passed/mu.exec(printed)?.[1])).toBe(dose(USUAL.length, ALL));
  });
});
