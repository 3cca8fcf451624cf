import { spawnSync } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

const RUNNER = path.join(import.meta.dirname, 'run-vitest.ts');
const IMPORT = "import { it, expect } from 'vitest';\n";
const PASSES = "it('passes', () => {});\n";
/** All processes of tests share compiled modules. */
const HAS_COMPILED =
  "import { getCompileCacheDir } from 'node:module'; it('has them', () => expect(getCompileCacheDir()).toBeTruthy());";
const FAILS = "it('fails', () => { expect(1).toBe(2); });\n";

describe('run-vitest', () => {
  let folder: string;

  beforeEach(async () => {
    // Below the repository, so that `vitest` is found from there.
    folder = await mkdtemp(path.join(import.meta.dirname, '../../node_modules/.run-vitest-'));
    await writeFile(
      path.join(folder, 'vitest.config.mjs'),
      "export default { test: { include: ['*.check.mjs'], exclude: [], isolate: false, maxWorkers: 1 } };",
    );
  });

  afterEach(() => rm(folder, { recursive: true, force: true }));

  async function run(files: Readonly<Record<string, string>>, ...args: string[]) {
    for (const [name, text] of Object.entries(files))
      await writeFile(path.join(folder, `${name}.check.mjs`), IMPORT + text);
    const { status, stdout } = spawnSync(process.execPath, [RUNNER, '--root', folder, ...args], {
      encoding: 'utf8',
      stdio: 'pipe',
    });
    return { status, last: stdout.trimEnd().split('\n').at(-1) };
  }

  it('passes on its arguments, ends with the numbers of passed and failed tests, and succeeds if all passed', async () => {
    const files = { a: PASSES, b: PASSES + FAILS + HAS_COMPILED };
    expect(await run(files, '-t', 'passes|has them')).toEqual({ status: 0, last: '3 passed, 0 failed' });
  });

  it('fails if a test fails, and counts a file that fails before its first test', async () => {
    const files = { a: PASSES, b: FAILS + PASSES, c: "import './missing.mjs';" };
    expect(await run(files)).toEqual({ status: 1, last: '2 passed, 2 failed' });
  });

  it('fails on an unhandled error, even if every test passed', async () => {
    const { status, last } = await run({ a: `${PASSES}void Promise.reject(new Error('left'));` });
    expect({ status, last }).toEqual({ status: 1, last: '1 passed, 1 failed' });
  });

  it('fails if there is no test at all', async () => {
    expect(await run({})).toEqual({ status: 1, last: '0 passed, 1 failed' });
  });

  it('fails if vitest is killed before it could report', async () => {
    const { status, last } = await run({ a: "it('ends', () => { process.kill(process.ppid, 'SIGKILL'); });" });
    expect({ status, last }).toEqual({ status: 1, last: '0 passed, 1 failed' });
  });
});
