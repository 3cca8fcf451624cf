import { randomUUID } from 'node:crypto';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { Code, ConnectError } from '@connectrpc/connect';
import { emptyCheckpoint, uuid6 } from '@langchain/langgraph-checkpoint';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { createDatabase, ENGINES } from '../../test/support/database.ts';
import { startTestServer, type TestServer } from '../../test/support/test-server.ts';
import { AnabranchSessionStore } from '../src/claude_agent_sdk/index.ts';
import { AnabranchSaver } from '../src/langgraph/index.ts';
import { AnabranchSession } from '../src/openai_agents/index.ts';

interface Used {
  write(i: number): Promise<unknown>;
  read(): Promise<number>;
  delete?(): Promise<void>;
}

/** Each integration, as a program uses it with one client. */
const USES: Readonly<Record<string, (client: AnabranchClient) => Used>> = {
  'anabranch/langgraph': (client) => {
    const saver = new AnabranchSaver(client);
    const config = { configurable: { thread_id: 'thread', checkpoint_ns: '' } };
    const put = async (parent: typeof config, i: number) => {
      const checkpoint = { ...emptyCheckpoint(), id: uuid6(0), channel_values: { i }, channel_versions: { i } };
      const at = await saver.put(parent, checkpoint, { source: 'loop', step: i, parents: {} }, { i });
      await saver.putWrites(at, [['i', i]], 'task');
    };
    return {
      write: async (i) => put(((await saver.getTuple(config))?.config as typeof config) ?? config, i),
      async read() {
        let count = 0;
        for await (const { pendingWrites } of saver.list(config)) count += pendingWrites?.length ?? 0;
        return count;
      },
      delete: () => saver.deleteThread('thread'),
    };
  },
  'anabranch/openai-agents': (client) => {
    const session = new AnabranchSession(client, { sessionId: 'session' });
    return {
      write: (i) => session.addItems([{ role: 'user', content: `${i}` }]),
      read: async () => (await session.getItems()).length,
    };
  },
  'anabranch/claude-agent-sdk': (client) => {
    const store = new AnabranchSessionStore(client);
    const key = { projectKey: 'project', sessionId: 'session' };
    return {
      write: (i) =>
        store.append(key, [{ type: 'user', uuid: randomUUID(), message: { role: 'user', content: `${i}` } }]),
      read: async () => (await store.load(key))?.length ?? 0,
      delete: () => store.delete(key),
    };
  },
};

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
