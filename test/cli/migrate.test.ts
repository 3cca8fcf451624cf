import { mkdtemp, rm } from 'node:fs/promises';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { createDatabase, ENGINES } from '../support/database.ts';
import { runCli } from './run_cli.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-migrate-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** The status of a GET over a Unix socket. Undefined if nothing listens. */
function statusOf(socketPath: string, target: string): Promise<number | undefined> {
  return new Promise((resolve) => {
    const request = http.get({ socketPath, path: target, agent: false, timeout: 10_000 }, (response) => {
      response.resume();
      resolve(response.statusCode);
    });
    request.on('timeout', () => request.destroy());
    request.on('error', () => resolve(undefined));
  });
}

async function untilListening(server: ReturnType<typeof serving>, socket: string): Promise<void> {
  while ((await Promise.race([statusOf(socket, '/livez'), server.failed])) === undefined) await wait(20);
}

function serving(database: string, socket: string) {
  const [stop, hangups] = [new AbortController(), new EventTarget()];
  const ready = Promise.withResolvers<void>();
  const ended = runCli(['serve', '--no-migrate', '--json', '--listen', `unix:${socket}`], {
    env: { DATABASE_URL: database },
    signal: stop.signal,
    onHangup: (listener) => hangups.addEventListener('hangup', listener),
    onOutput: () => ready.resolve(),
  });
  const hangUp = () => hangups.dispatchEvent(new Event('hangup'));
  /** Rejects if the server ends, with what it said. */
  const failed = ended.then(({ stderr }): never => {
    throw new Error(`the server has ended: ${stderr}`);
  });
  failed.catch(() => undefined);
  return { ready: () => Promise.race([ready.promise, failed]), failed, ended, stop: () => stop.abort(), hangUp };
}

describe.each(ENGINES)('migrate, on %s', (engine) => {
  it('creates the schema, and changes nothing a second time', async () => {
    await using database = await createDatabase(engine);
    for (let i = 0; i < 2; i += 1) {
      const { code, stdout } = await runCli(['migrate', '--json'], { env: { DATABASE_URL: database.url } });
      expect({ code, ...JSON.parse(stdout) }).toMatchObject({ code: 0, event: 'migrated' });
    }
  });
});

describe('migrate', () => {
  it.each([
    [1, 'ECONNREFUSED', ['--database', 'postgres://ann@127.0.0.1:1/x']],
    [2, '--database begins with "mysql://"', ['--database', 'mysql://x']],
  ])('ends with %i and one line: %s', async (code, words, args) => {
    const ended = await runCli(['migrate', ...args]);
    expect(ended).toMatchObject({ code, stdout: '' });
    expect(ended.stderr).toContain(words);
    expect(ended.stderr.trim().split('\n')).toHaveLength(1);
  });
});

describe.runIf(ENGINES.includes('postgres'))('serve --no-migrate, on postgres', () => {
  it('lives without being ready until another process has migrated the schema, then serves', async () => {
    await using database = await createDatabase('postgres');
    const socket = path.join(folder, 'waits', 'sock');
    const server = serving(database.url, socket);
    await untilListening(server, socket);
    expect(await statusOf(socket, '/livez')).toBe(200);
    for (const probe of ['/readyz', '/healthz', '/health']) expect(await statusOf(socket, probe)).toBe(503);
    const client = connectClient({ address: `unix:${socket}` });
    await expect(client.server.getServerInfo({}, { timeoutMs: 2_000 })).rejects.toThrow(/unavailable|deadline/i);
    client.close();

    expect(await runCli(['migrate'], { env: { DATABASE_URL: database.url } })).toMatchObject({ code: 0 });
    await server.ready();
    expect(await statusOf(socket, '/healthz')).toBe(200);
    server.stop();
    const { code, stderr } = await server.ended;
    expect(code).toBe(0);
    expect(stderr).toContain('waits for `anabranch migrate`');
  });

  it.each(['stop', 'hangUp'] as const)('can be stopped while it waits, by %s', async (signal) => {
    await using database = await createDatabase('postgres');
    const socket = path.join(folder, signal, 'sock');
    const server = serving(database.url, socket);
    await untilListening(server, socket);
    server[signal]();
    const { code, stdout, stderr } = await server.ended;
    expect({ code, stdout }).toEqual({ code: 0, stdout: '' });
    expect(stderr).toContain('stopped before the schema was migrated');
  });
});

it('serve --no-migrate is refused on SQLite, with the reason', async () => {
  const args = ['serve', '--no-migrate', '--database', `sqlite:${path.join(folder, 'a.db')}`];
  const { code, stderr } = await runCli(args);
  expect(code).toBe(2);
  expect(stderr).toContain('--no-migrate requires Postgres');
});
