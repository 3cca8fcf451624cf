import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { freePort } from '../support/free_port.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { startTestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-health-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

describe('health', () => {
  it('prints ok for a server that serves, by flag or variable', async () => {
    await using server = await startTestServer();
    const listen = `127.0.0.1:${server.port}`;
    expect(await runCli(['health', '--listen', listen])).toMatchObject({ code: 0, stdout: 'ok\n' });
    const env = { ANABRANCH_LISTEN: `0.0.0.0:${server.port}` };
    expect(await runCli(['health'], { env })).toMatchObject({ code: 0, stdout: 'ok\n', stderr: '' });
  });

  it('asks over TLS and a Unix socket as the server listens', async () => {
    const { tlsCert, tlsKey } = writeIssued(createAuthority().issue({ names: ['anabranch.example'] }));
    const database = `sqlite:${path.join(folder, 'a.db')}`;
    const tls = { ANABRANCH_TLS_CERT: tlsCert, ANABRANCH_TLS_KEY: tlsKey };
    {
      await using server = await spawnServer({ database, env: tls });
      const env = { ...tls, ANABRANCH_LISTEN: `127.0.0.1:${server.port}` };
      expect(await runCli(['health'], { env })).toMatchObject({ code: 0, stdout: 'ok\n' });
    }
    const listen = `unix:${path.join(folder, 'run', 'sock')}`;
    await using _ = await spawnServer({ database, listen });
    expect(await runCli(['health', '--listen', listen])).toMatchObject({ code: 0, stdout: 'ok\n' });
  });

  it('ends with 1 and one line if nobody answers, and with 2 if the address is invalid', async () => {
    const closed = await runCli(['health', '--listen', `127.0.0.1:${await freePort()}`]);
    expect(closed).toMatchObject({ code: 1, stdout: '' });
    expect(closed.stderr.trim().split('\n')).toHaveLength(1);
    expect(await runCli(['health', '--listen', 'nowhere'])).toMatchObject({ code: 2, stdout: '' });
  });
});
