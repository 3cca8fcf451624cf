import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { describe, expect, inject, it } from 'vitest';
import { pointedAt, programOf, readSnippets } from '../docs/snippets.ts';
import { run } from '../languages/run.ts';
import { createDatabase } from '../support/database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { startTestServer } from '../support/test-server.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const project = inject('project');

/** Yields the JSON objects that a program prints, one per line. Throws its error output if it ends. */
async function* objects({ stdout, stderr }: ChildProcessWithoutNullStreams): AsyncGenerator<unknown, never> {
  const complaints = text(stderr);
  for await (const line of createInterface(stdout)) yield JSON.parse(line);
  throw new Error(`The program has ended: ${await complaints}`);
}

describe('anabranch/client on Node 20', () => {
  it('C1: writes, follows, resumes, watches and logs, while the server is killed and started again', async () => {
    await using database = await createDatabase('sqlite');
    const first = await spawnServer({ database: database.url });
    await copyFile(path.join(import.meta.dirname, 'story.mjs'), path.join(project, 'story.mjs'));
    await using proxy = await startTcpProxy(first);
    const program = spawn(inject('node20'), ['story.mjs', proxy.url], {
      cwd: project,
      stdio: 'pipe',
      timeout: 100_000,
    });
    const ended = once(program, 'close');
    const events = objects(program);

    expect((await events.next()).value).toEqual({ event: 'written' });
    await first.kill();
    program.stdin.end('go on\n');
    await using second = await spawnServer({ database: database.url });
    proxy.retarget(second);

    expect((await events.next()).value).toEqual({
      event: 'done',
      node: expect.stringMatching(/^20\./),
      followed: [0, 1, 2, 3],
      checkpoint: 'state 2',
      continuedAt: 3,
      downloaded: true,
      tagged: 2,
      watched: ['RUNNING', 'COMPLETED'],
      refused: 'STEP_NOT_FOUND',
      refusedWith: expect.objectContaining({ next_step_number: '4' }),
    });
    await expect(events.next()).rejects.toThrow(/^The program has ended: $/);
    expect(await ended).toEqual([0, null]);
  });

  it('C1: npm installs it on Node 20 with engine-strict; the command runs on the Node that comes with it', async () => {
    const bin = path.join(project, 'node_modules/anabranch/bin/anabranch.js');
    expect(await run(inject('node20'), [bin, 'serve', '--help'])).toContain('Usage: anabranch serve');
    const manifest = JSON.parse(await readFile(path.join(project, 'package.json'), 'utf8'));
    expect(Object.keys(manifest.dependencies)).toEqual(['anabranch']);
  });
});

describe('npx anabranch serve', () => {
  it('serves from any folder, without an installation', async () => {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-npx-'));
    const bin = path.dirname(inject('node20'));
    const env = { ...process.env, PATH: `${bin}${path.delimiter}${process.env.PATH}` };
    // npx keeps what it installs: here in a cache of this test, with the downloads of the usual one.
    const cache = path.join(folder, 'cache');
    const usual = await run(path.join(bin, 'npm'), ['config', 'get', 'cache'], { env });
    await mkdir(cache);
    await symlink(path.join(usual.trim(), '_cacache'), path.join(cache, '_cacache'));
    const command = ['anabranch', 'serve', '--json', '--listen', '127.0.0.1:0'];
    const args = ['--yes', '--prefer-offline', `--package=${inject('tarball')}`, ...command];
    const npx = spawn(path.join(bin, 'npx'), args, {
      cwd: folder,
      env: { ...env, npm_config_cache: cache },
      stdio: ['ignore', 'pipe', 'inherit'],
      detached: true,
    });
    const ended = once(npx, 'exit');
    try {
      const [line] = (await Promise.race([once(createInterface(npx.stdout), 'line'), ended])) as [string];
      const { url } = JSON.parse(line) as { url: string };
      expect(await (await fetch(`${url}/healthz`)).text()).toBe('ok');
      expect(existsSync(path.join(folder, '.anabranch/data.db'))).toBe(true);
    } finally {
      // Like Ctrl-C: to npx and all its processes.
      if (npx.exitCode === null) process.kill(-(npx.pid ?? 0), 'SIGINT');
      await ended;
      await rm(folder, { recursive: true, force: true });
    }
  });
});

describe('docs/clients.md', () => {
  it('its program for browsers runs as it says, here with the fetch() of Node 20', async () => {
    await using server = await startTestServer();
    const program = pointedAt(programOf(readSnippets('docs/clients.md'), 'web'), `${server.host}:${server.port}`);
    await writeFile(path.join(project, 'snippet.js'), program);
    const printed = await run(inject('node20'), ['snippet.js'], { cwd: project });
    expect(printed.split('\n')).toEqual(['0n 1', 'TAG_NOT_FOUND', '']);
  });
});

describe('the protos of the package', () => {
  it('compile without changes', async () => {
    await run('buf', ['build', path.join(project, 'node_modules/anabranch/gen/proto')], { cwd: ROOT });
  });
});

describe('the declarations of the package', () => {
  it.each([
    { entry: 'anabranch/client', compilerOptions: { lib: ['es2023', 'esnext.disposable'], types: ['node'] } },
    { entry: 'anabranch/client/web', compilerOptions: { lib: ['es2023', 'dom', 'dom.asynciterable'], types: [] } },
  ])('C1, C2: $entry compiles in a strict project', async ({ entry, compilerOptions }) => {
    const web = entry.endsWith('web');
    const name = web ? 'web' : 'node';
    await writeFile(
      path.join(project, `${name}.ts`),
      `import { connectClient, readSteps, watchRun } from '${entry}';
       const client = connectClient({ address: '127.0.0.1:1' });
       export const call: Promise<{ trajectory?: { id: string } | undefined }> = client.trajectories.getTrajectory({});
       export const steps = readSteps(client, { trajectoryId: '' });
       export const number = async (): Promise<bigint> => (await steps.next()).value!.step.stepNumber;
       export const pictures = watchRun(client, { runId: '' });
       ${web ? '// @ts-expect-error: fetch() cannot stream a request.' : ''}
       export const append = client.trajectories.appendSteps;
      `,
    );
    const options = {
      ...compilerOptions,
      module: 'nodenext',
      target: 'es2023',
      strict: true,
      noEmit: true,
      skipLibCheck: true,
    };
    const typeRoots = [path.join(ROOT, 'node_modules/@types')];
    const config = { compilerOptions: { ...options, typeRoots }, files: [`${name}.ts`] };
    await writeFile(path.join(project, `tsconfig.${name}.json`), JSON.stringify(config));
    expect(await run('tsc', ['-p', `tsconfig.${name}.json`], { cwd: project })).toBe('');
  });
});
