import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { run } from './run.ts';
import { ensureVenv } from './tools.ts';

const REQUIREMENTS = path.resolve(import.meta.dirname, '../../clients/python/requirements-test.txt');
/** The lowest versions that clients/python/pyproject.toml allows. */
const LOWEST = ['grpcio==1.71.2', 'protobuf==5.29.1', 'googleapis-common-protos==1.66.0'];
const HIGHEST = ['grpcio', 'protobuf', 'googleapis-common-protos'];
/** What the tests need. The newest versions have no wheels for the oldest Python. */
const TOOLS = ['hypothesis', 'numpy', 'pillow', 'pydantic', 'pytest'];

export type Packages = 'lowest' | 'highest';

/** Returns the program of a version of Python: from PATH, or from pyenv. Undefined if this machine does not have it. */
export async function findPython(version: string): Promise<string | undefined> {
  const versions = path.join(process.env.PYENV_ROOT ?? path.join(os.homedir(), '.pyenv'), 'versions');
  const installed = existsSync(versions) ? await readdir(versions) : [];
  const ofPyenv = installed
    .filter((name) => name.startsWith(`${version}.`))
    .map((name) => path.join(versions, name, 'bin/python'));
  for (const program of [`python${version}`, ...ofPyenv]) {
    const works = await run(program, ['-m', 'venv', '--help']).then(
      () => true,
      () => false,
    );
    if (works) return program;
  }
  return undefined;
}

/** Returns the Python of a venv with these packages, made once. `tools` are what the tests need. */
export async function venvOf(
  python: string,
  version: string,
  packages: Packages,
  tools: readonly string[] = TOOLS,
): Promise<string> {
  const pinned = new Map(
    (await readFile(REQUIREMENTS, 'utf8')).split('\n').map((line) => [line.split('==')[0]!, line]),
  );
  const wanted = [...(packages === 'lowest' ? LOWEST : HIGHEST.map((name) => pinned.get(name)!)), ...tools];
  return ensureVenv(`python-sdk-${version}-${packages}`, python, wanted);
}
