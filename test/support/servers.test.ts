import { access } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { ENGINES } from './database.ts';
import { createMigratedDatabase } from './migrated_database.ts';
import { spawnServer } from './spawned-server.ts';
import { startTestServer } from './test-server.ts';

describe.each(ENGINES)('startTestServer on %s', (engine) => {
  it('serves on a free port, and is removed with its database once stopped', async () => {
    const server = await startTestServer({ engine });
    expect(server.database.engine).toBe(engine);
    expect(await (await fetch(`${server.url}/healthz`)).text()).toBe('ok');
    await server.stop();
    await server.stop();
    await expect(fetch(`${server.url}/healthz`)).rejects.toThrow();
    if (engine === 'sqlite')
      await expect(access(server.database.url.slice('sqlite:'.length))).rejects.toThrow(/ENOENT/);
  });

  it('leaves a database that the test created to the test', async () => {
    await using database = await createMigratedDatabase(engine);
    const trajectoryId = '0199f0a0-0000-7000-8000-000000000001';
    const first = await startTestServer({ database });
    await call(first.url, (client) => client.trajectories.createTrajectory({ trajectoryId }));
    await first.stop();
    await using second = await startTestServer({ database });
    const found = await call(second.url, (client) => client.trajectories.getTrajectory({ trajectoryId }));
    expect(found.trajectory?.nextStepNumber).toBe(0n);
  });
});

describe('spawnServer', () => {
  it('is a process of its own, ready when it resolves; after a kill another one finds its data, and exits normally after SIGTERM', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const trajectoryId = '0199f0a0-0000-7000-8000-000000000002';
    const first = await spawnServer({ database: database.url });
    expect(await (await fetch(`${first.url}/healthz`)).text()).toBe('ok');
    expect(first.pid).not.toBe(process.pid);
    expect(first.store).toMatch(/SQLite/);
    await call(first.url, (client) => client.trajectories.createTrajectory({ trajectoryId }));
    expect(await first.kill()).toEqual({ code: null, signal: 'SIGKILL' });
    await using second = await spawnServer({ database: database.url });
    await call(second.url, (client) => client.trajectories.getTrajectory({ trajectoryId }));
    expect(await second.terminate()).toEqual({ code: 0, signal: null });
    expect(second.output()).toContain('"event":"ready"');
  });

  it('reports the output of a server that does not become ready', async () => {
    await using database = await createMigratedDatabase('sqlite');
    await expect(spawnServer({ database: database.url, listen: 'nowhere' })).rejects.toThrow(/nowhere/);
  });
});

async function call<T>(url: string, use: (client: ReturnType<typeof connectClient>) => Promise<T>): Promise<T> {
  const client = connectClient({ address: url });
  try {
    return await use(client);
  } finally {
    client.close();
  }
}
