import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { access } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { ON_POSTGRES } from './database.ts';
import { startPostgres } from './postgres.ts';

describe.runIf(ON_POSTGRES)('startPostgres, for tests on Postgres', () => {
  it('keeps committed data through killAll and restart, on the same address, with fsync on; stopping twice is safe, and removes its folder', async () => {
    await using server = await startPostgres({ port: 'free' });
    const first = await connect(server.url);
    expect((await first.query('SHOW fsync')).rows).toEqual([{ fsync: 'on' }]);
    await first.query('CREATE TABLE t AS SELECT 1 AS x');
    const cut = new Promise((resolve) => first.on('error', resolve));
    const before = server.pid;

    await server.killAll();
    await cut;
    await expect(connect(server.url)).rejects.toThrow(/ECONNREFUSED/);
    await server.restart();

    expect(server.pid).not.toBe(before);
    const second = await connect(server.url);
    expect((await second.query('SELECT x FROM t')).rows).toEqual([{ x: 1 }]);
    await second.end();

    await server.stop();
    await server.stop();
    await expect(access(server.dir)).rejects.toThrow(/ENOENT/);
  });

  it('leaves no server and no folder behind when the process that started it is killed', async () => {
    const starter = path.join(import.meta.dirname, 'postgres.ts');
    const program = `import { startPostgres } from ${JSON.stringify(starter)};
      const { dir, pid, url } = await startPostgres();
      console.log(JSON.stringify({ dir, pid, url }));
      setInterval(() => {}, 1000);`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const [line] = (await once(child.stdout, 'data')) as [Buffer];
    const { dir, url } = JSON.parse(line.toString()) as { dir: string; url: string };
    const client = await connect(url);
    const cut = new Promise((resolve) => client.on('error', resolve));

    child.kill('SIGKILL');

    await cut; // the server went down
    await expect.poll(() => exists(dir), { timeout: 20_000 }).toBe(false);
  });

  it('reports the output of Postgres if it does not start', async () => {
    await expect(startPostgres({ settings: { shared_buffers: 'plenty' } })).rejects.toThrow(/shared_buffers.*plenty/s);
  });
});

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client(url);
  client.on('error', () => undefined);
  await client.connect();
  return client;
}

async function exists(file: string): Promise<boolean> {
  return access(file).then(
    () => true,
    () => false,
  );
}
