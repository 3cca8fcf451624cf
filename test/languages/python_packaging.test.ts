import path from 'node:path';
import { expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { findPython, venvOf } from './python_versions.ts';
import { run } from './run.ts';
import { compileOnce, contentsOf } from './tools.ts';

const FOLDER = path.resolve(import.meta.dirname, '../../clients/python');
const PYTEST = ['-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'packaging'];

/** The usual dose takes one way of each kind: a built wheel, a link to the sources, a source distribution. */
const USUAL = ['from_the_checkout', 'editable', 'from_the_wheel_of_a_source_distribution'];
const SERVER = 'the_wheels_bring_the_server_and_run_the_readme_without_node_on_the_path';
const ALL = 9;

/** What builds the packages, and runs the tests. */
const TOOLS = ['build', 'hatchling', 'pytest'];

/** What the tests read: the package, and their own files. */
const PACKAGE = ['clients/python', 'gen/python', '.gitignore', ':(exclude)clients/python/tests'];
const OWN = ['clients/python/tests/test_packaging.py', 'clients/python/tests/conftest.py'];

it('the Python package installs in each documented way into a fresh venv', { timeout: 900_000 }, async ({ skip }) => {
  const python = (await findPython('3.12')) ?? skip('this machine has no Python 3.12');
  const own = await venvOf(python, '3.12', 'highest', TOOLS);
  const installed = await run(own, ['-m', 'pip', 'freeze', '--all', '--disable-pip-version-check']);
  const sources = [...(await contentsOf(...PACKAGE)), ...(await contentsOf(...OWN))];
  await compileOnce('python-packaging', [own, installed, ...USUAL, ...sources], async () => {
    const tests = dose(
      USUAL.map((name) => `tests/test_packaging.py::test_${name}`),
      ['tests/test_packaging.py', '--deselect', `tests/test_packaging.py::test_${SERVER}`],
    );
    const printed = await run(own, [...PYTEST, ...tests], { cwd: FOLDER, minutes: 12 });
    expect(Number(/^(\d+) passed/mu.exec(printed)?.[1])).toBe(dose(USUAL.length, ALL));
  });
});

it('the server comes with the Python package, and needs no Node on the PATH', { timeout: 600_000 }, async ({
  skip,
}) => {
  const python = (await findPython('3.12')) ?? skip('this machine has no Python 3.12');
  const own = await venvOf(python, '3.12', 'highest', TOOLS);
  const test = `tests/test_packaging.py::test_${SERVER}`;
  expect(await run(own, [...PYTEST, test], { cwd: FOLDER, minutes: 8 })).toMatch(/^1 passed/mu);
});
