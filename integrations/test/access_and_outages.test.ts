import { mkdtemp, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { Code, ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import type { GetServerInfoResponse } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { connectClient } from '../../src/client/index.ts';
import { createDatabase, ENGINES } from '../../test/support/database.ts';
import { startTestServer, type TestServer } from '../../test/support/test-server.ts';
import { serving } from './served.ts';
import { USES } from './uses.ts';

describe.each(ENGINES)('a restart of the server on %s', (engine) => {
  it.each(Object.entries(USES))(
    'delays the calls of %s, which lose nothing and store nothing twice',
    async (_, use) => {
      await using database = await createDatabase(engine);
      let server = await startTestServer({ database });
      const listen = new URL(server.url).host;
      const client = connectClient({ address: server.url });
      const used = use(client);
      await used.write(0);
      await server.stop();
      const waiting = used.write(1);
      server = await startTestServer({ database, flags: { listen } });
      await waiting;
      const writes = used.write(2);
      await server.stop();
      server = await startTestServer({ database, flags: { listen } });
      await writes;
      expect(await used.read()).toBe(3);
      client.close();
      await server.stop();
    },
  );
});

describe('on a server with authentication', () => {
  let folder = '';
  let server: TestServer;
  const secrets = new Map<Role, string>();
  beforeAll(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-access-'));
    const adminKeyFile = path.join(folder, 'admin.key');
    server = await startTestServer({ flags: { auth: 'required', adminKeyFile }, settings: { authenticated: true } });
    const admin = connectClient({ address: server.url, token: (await readFile(adminKeyFile, 'utf8')).trim() });
    for (const role of [Role.READ, Role.WORK, Role.WRITE]) {
      const { secret } = await admin.admin.createKey({ name: Role[role], role, namespaces: ['default'] });
      secrets.set(role, secret);
    }
    admin.close();
  });
  afterAll(async () => {
    await server?.stop();
    await rm(folder, { recursive: true, force: true });
  });

  const codeOf = (call: Promise<unknown>) =>
    call.then(
      () => undefined,
      (error: unknown) => ConnectError.from(error).code,
    );

  it.each(Object.entries(USES))(
    '%s needs WORK to write and WRITE to delete, and fails with a wrong token',
    async (_, use) => {
      const as = (token: string | undefined) => use(connectClient({ address: server.url, token: token ?? 'wrong' }));
      expect(await codeOf(as('wrong').write(0))).toBe(Code.Unauthenticated);
      expect(await codeOf(as(secrets.get(Role.READ)).write(0))).toBe(Code.PermissionDenied);
      const worker = as(secrets.get(Role.WORK));
      await worker.write(0);
      expect(await as(secrets.get(Role.READ)).read()).toBe(1);
      if (worker.delete === undefined) return;
      expect(await codeOf(worker.delete())).toBe(Code.PermissionDenied);
      expect(await worker.read()).toBe(1);
      await as(secrets.get(Role.WRITE)).delete?.();
      expect(await worker.read()).toBe(0);
    },
  );
});

describe.each(Object.entries(USES))('%s', (_, use) => {
  const served = serving('sqlite');

  /** Opens a client whose server says something else of itself. Returns it with the names of its calls. */
  function clientThatHears(change: (info: GetServerInfoResponse) => void) {
    const calls: string[] = [];
    const client = connectClient({
      address: served.url,
      interceptors: [
        (next) => async (request) => {
          calls.push(request.method.name);
          const response = await next(request);
          if (request.method.name === 'GetServerInfo') change(response.message as GetServerInfoResponse);
          return response;
        },
      ],
    });
    return { client, calls };
  }

  it('makes no call to a server of another version', async () => {
    const { client, calls } = clientThatHears((info) => {
      info.version = '9.9.9';
    });
    await expect(use(client).write(0)).rejects.toThrow(/client version \S+ cannot use server version 9\.9\.9/);
    await expect(use(client).read()).rejects.toThrow('9.9.9');
    expect(new Set(calls)).toEqual(new Set(['GetServerInfo']));
    client.close();
  });

  it('refuses values that are too large or that JSON cannot hold, and stores nothing of them', async () => {
    const { client } = clientThatHears((info) => {
      info.limits.stateBytes = 1_000_000n;
    });
    const used = use(client);
    expect(await used.read()).toBe(0);
    await expect(used.write('x'.repeat(1_500_000))).rejects.toThrow(/has 15\d{5} bytes: expected at most 1000000/);
    await expect(used.write([1n])).rejects.toThrow(/bigint|cannot be serialized/i);
    expect(await used.read()).toBe(0);
    await used.write('x'.repeat(900_000));
    expect(await used.read()).toBe(1);
    client.close();
  });

  it('fails in the given time while the server is away', async () => {
    const client = connectClient({ address: '127.0.0.1:1' });
    await expect(use(client, 300).write(0)).rejects.toThrow(/gave up after .* ECONNREFUSED/);
    await expect(use(client, 300).read()).rejects.toThrow(/gave up/);
    client.close();
  });
});
