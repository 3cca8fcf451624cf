import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { INITIAL_HEAP, withInitialHeap } from '../../src/initial_heap.ts';
import { spawnServer } from '../support/spawned-server.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const MAIN = path.join(ROOT, 'src/main.ts');
const MIB = 1024 * 1024;

describe('the size with which the heap of a server starts', () => {
  const started = { nodeArgs: ['--no-warnings'], nodeOptions: '--enable-source-maps', memoryLimit: 0 };

  it('is a flag that this version of Node has', () => {
    const [name = ''] = INITIAL_HEAP.split('=');
    expect(execFileSync(process.execPath, ['--v8-options'], { encoding: 'utf8' })).toContain(`  ${name} (`);
  });

  it('is added to the arguments of Node once', () => {
    const nodeArgs = withInitialHeap(started);
    expect(nodeArgs).toEqual(['--no-warnings', INITIAL_HEAP]);
    expect(withInitialHeap({ ...started, nodeArgs: nodeArgs! })).toBeUndefined();
  });

  it.each([
    '--initial-heap-size=64',
    '--initial-old-space-size=64',
    '--max-heap-size=512',
    '--max-old-space-size=512',
    '--max_old_space_size=512',
    '--max-old-space-size-percentage=50',
    '--max-semi-space-size=64',
    '--min-semi-space-size=64',
  ])('is left to the user who sets %s', (flag) => {
    expect(withInitialHeap({ ...started, nodeArgs: [flag] })).toBeUndefined();
    expect(withInitialHeap({ ...started, nodeOptions: `--no-warnings ${flag}` })).toBeUndefined();
  });

  it('is left small with less than 1 GiB of memory', () => {
    expect(withInitialHeap({ ...started, memoryLimit: 1023 * MIB })).toBeUndefined();
    expect(withInitialHeap({ ...started, memoryLimit: 1024 * MIB })).toBeDefined();
  });
});

describe('a server that starts itself again', () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-heap-'));
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));

  const argsOf = (pid: number) => execFileSync('ps', ['-o', 'args=', '-p', String(pid)], { encoding: 'utf8' });

  /** Starts a command that serves. It writes only to pipes, and reads nothing. */
  function serve([command = '', ...before]: readonly string[], file: string): ChildProcess {
    const args = [...before, '--json', '--listen', '127.0.0.1:0', '--log-level', 'warn'];
    const env = {
      PATH: process.env.PATH,
      HOME: folder,
      DATABASE_URL: `sqlite:${file}`,
      npm_config_update_notifier: 'false',
    };
    return spawn(command, args, { cwd: ROOT, env, stdio: ['ignore', 'pipe', 'inherit'] });
  }

  it.each([
    ['node src/main.ts', [process.execPath, MAIN, 'serve']],
    ['bin/anabranch.js', [path.join(ROOT, 'bin/anabranch.js'), 'serve']],
    ['npm start', ['npm', '--silent', 'start', '--']],
    ['npx anabranch', ['npx', '--no', 'anabranch', 'serve']],
  ])('by %s has the flag, the same process id, environment and output, and ends with code 0', async (name, command) => {
    const file = path.join(folder, `${name.replaceAll('/', ' ')}.db`);
    const child = serve(command, file);
    const exited = once(child, 'exit');
    const lines = createInterface(child.stdout!)[Symbol.asyncIterator]();
    while (!String((await lines.next()).value).includes('"event":"ready"'));
    const holder = await readFile(`${file}.holder`, 'utf8');
    const pid = Number(/process (\d+) /.exec(holder)?.[1]);
    if (!name.startsWith('np')) expect(pid).toBe(child.pid);
    expect(argsOf(pid)).toContain(INITIAL_HEAP);
    process.kill(pid, 'SIGTERM');
    expect(await exited).toEqual([0, null]);
  });

  it('has no handler for SIGTERM before, and so ends by it in the first process and in the second', async () => {
    for (const awaited of [MAIN, INITIAL_HEAP]) {
      const child = serve([process.execPath, MAIN, 'serve'], path.join(folder, 'signal.db'));
      const exited = once(child, 'exit');
      while (!argsOf(child.pid!).includes(awaited));
      child.kill('SIGTERM');
      const [code, signal] = await exited;
      expect([0, 143, 'SIGTERM']).toContain(code ?? signal);
    }
  });

  it('does not do so if the user has set a size', async () => {
    const database = `sqlite:${path.join(folder, 'own.db')}`;
    await using server = await spawnServer({ database, nodeArgs: ['--max-old-space-size=512'] });
    expect(argsOf(server.pid)).not.toContain(INITIAL_HEAP);
  });
});
