import { gzipSync } from 'node:zlib';
import { create, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { AppendBatchRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Store } from '../../src/store/contract/store.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer } from '../support/test-server.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { withHeaders } from './headers.ts';
import { http2Session, inEnvelope, RawCall, until } from './raw.ts';

const APPEND_BATCH = '/anabranch.v1.TrajectoryService/AppendBatch';
const ENTRY = { trajectoryId: '0198c0de-0000-7000-8000-000000000001' };

let database: TestDatabase;
const secrets = new Map<string, string>();

beforeAll(async () => {
  database = await createMigratedDatabase(ENGINES[0]!);
  await using open = await startTestServer({ database });
  const admin = createClient(AdminService, createGrpcTransport({ baseUrl: open.url }));
  for (const name of ['many', 'one']) {
    secrets.set(name, (await admin.createKey({ name, role: Role.WORK, namespaces: [name] })).secret);
  }
});
afterAll(async () => {
  await database?.drop();
});

it('MS1, MS5: large messages of several principals are decoded in turn', async () => {
  const gate = Promise.withResolvers<void>();
  const asked: string[] = [];
  /** Reads that a message causes before it is stored: the first one waits. */
  const slow = (store: Store) =>
    wrappedStore(store, {
      findTrajectoryRefs: async (namespace, ids) => {
        asked.push(namespace);
        if (asked.length === 1) await gate.promise;
        return store.findTrajectoryRefs(namespace, ids);
      },
    });
  await using server = await startTestServer({ database, settings: { authenticated: true }, wrap: slow });
  const session = await http2Session(server.url);
  /** A compressed message takes all of the queue. One with thousands of steps keeps it until they are stored. */
  const append = (name: string, entries: MessageInitShape<typeof AppendBatchRequestSchema>['entries']) => {
    const headers = {
      authorization: `Bearer ${secrets.get(name)}`,
      'content-type': 'application/grpc',
      'grpc-encoding': 'gzip',
    };
    const call = new RawCall(session, APPEND_BATCH, headers);
    const bytes = toBinary(AppendBatchRequestSchema, create(AppendBatchRequestSchema, { entries }));
    call.stream.end(inEnvelope(gzipSync(bytes), 1));
    return call.outcome;
  };
  const slots = (count: number) => until(() => server.counts().slots === count, `${count} messages wait`);
  const steps = Array.from({ length: 6_000 }, (_, i) => ({ stepNumber: BigInt(i), reward: 0.5 }));
  const calls = [append('many', [{ ...ENTRY, writerId: 'w', steps }])];
  await until(() => asked.length === 1, 'the first message keeps its slot');
  for (const [i, name] of ['many', 'many', 'many', 'one'].entries()) {
    calls.push(append(name, [{ ...ENTRY, steps: [{ stepNumber: 0n, reward: 0.5 }] }]));
    await slots(i + 2);
  }
  gate.resolve();
  await Promise.all(calls);
  expect(asked).toEqual(['many', 'many', 'one', 'many', 'many']);
  session.destroy();
});

it('MS5: what a call reads and writes is in the turns of its namespace', async () => {
  const namespaces = new Set<string | undefined>();
  const observed = (store: Store): Store => {
    const seen: Store = wrappedStore(store, {
      within: (call) => {
        namespaces.add(call.namespace);
        return store.within(call);
      },
    });
    return seen;
  };
  await using server = await startTestServer({ database, settings: { authenticated: true }, wrap: observed });
  for (const [name, secret] of secrets) {
    const transport = createGrpcTransport({
      baseUrl: server.url,
      interceptors: [withHeaders({ authorization: `Bearer ${secret}` })],
    });
    await createClient(RunService, transport).listRuns({});
    expect([...namespaces], name).toContain(name);
  }
  expect(namespaces).toEqual(new Set(secrets.keys()));
});
