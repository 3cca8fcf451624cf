import { gzipSync } from 'node:zlib';
import { create, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { Code, ConnectError, createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import {
  AppendBatchRequestSchema,
  type AppendEntrySchema,
  TrajectoryService,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema, RetryInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import type { Store } from '../../src/store/contract/store.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { withHeaders } from './headers.ts';
import { asAdmin } from './keys.ts';
import { http2Session, inEnvelope, RawCall, until } from './raw.ts';
import { collect } from './story.ts';

const APPEND_BATCH = '/anabranch.v1.TrajectoryService/AppendBatch';
const ENTRY = { trajectoryId: '0198c0de-0000-7000-8000-000000000001' };

let database: TestDatabase;
const secrets = new Map<string, string>();
const bearer = (name: string) => ({ authorization: `Bearer ${secrets.get(name)}` });

beforeAll(async () => {
  database = await createMigratedDatabase(ENGINES[0]!);
  await asAdmin(database, async (admin) => {
    for (const name of ['many', 'one']) {
      secrets.set(name, (await admin.createKey({ name, role: Role.WRITE, namespaces: [name] })).secret);
    }
  });
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
  const append = (name: string, entries: MessageInitShape<typeof AppendEntrySchema>[]) => {
    const headers = { ...bearer(name), 'content-type': 'application/grpc', 'grpc-encoding': 'gzip' };
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
  for (const name of secrets.keys()) {
    const transport = createGrpcTransport({
      baseUrl: server.url,
      interceptors: [withHeaders(bearer(name))],
    });
    await createClient(RunService, transport).listRuns({});
    expect([...namespaces], name).toContain(name);
  }
  expect(namespaces).toEqual(new Set(secrets.keys()));
});

describe('MS6: the limits of a principal', () => {
  const perPrincipal = { streamsPerPrincipal: 3, followersPerPrincipal: 1, watchersPerPrincipal: 2 };
  const settings = { authenticated: true, perPrincipal };
  const transportOf = (server: TestServer, name: string) =>
    createGrpcTransport({
      baseUrl: server.url,
      interceptors: [withHeaders(bearer(name))],
    });
  const idle = (server: TestServer) =>
    until(() => Object.values(server.counts()).every((count, i) => i < 2 || count === 0), 'nothing is open');

  /** Expects CALLER_LIMIT with a delay. */
  async function expectLimit(answer: Promise<unknown>, limit: string): Promise<void> {
    const error = ConnectError.from(await answer.catch((thrown: unknown) => thrown));
    expect(Code[error.code], String(error)).toBe('ResourceExhausted');
    expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: 'CALLER_LIMIT', metadata: { limit } }]);
    expect(error.findDetails(RetryInfoSchema)).toHaveLength(1);
  }

  it('hold for its followers, watched subjects and calls, with all its keys, and for no other principal', async () => {
    await using server = await startTestServer({ database, settings });
    const [many, one] = [transportOf(server, 'many'), transportOf(server, 'one')];
    const trajectories = createClient(TrajectoryService, many);
    const { trajectory } = await trajectories.createTrajectory({});
    const { run } = await createClient(RunService, many).createRun({});
    const end = new AbortController();
    const { signal } = end;
    const begun = async (answers: AsyncIterable<unknown>) => {
      const iterator = answers[Symbol.asyncIterator]();
      await iterator.next();
      iterator.next().catch(() => undefined); // it is cut off at the end
    };
    const follow = () => trajectories.readSteps({ trajectoryId: trajectory!.id, follow: true }, { signal });
    await begun(follow());
    await expectLimit(collect(follow()), 'followersPerPrincipal');
    const subject = { run: { runId: run!.id } };
    const watcher = createClient(ServerService, many);
    await begun(watcher.watch({ subjects: { a: subject, b: subject } }, { signal }));
    await expectLimit(collect(watcher.watch({ subjects: { c: subject } }, { signal })), 'watchersPerPrincipal');
    await begun(createClient(ServerService, one).watch({ subjects: { a: { runs: {} } } }, { signal }));
    const session = await http2Session(server.url);
    new RawCall(session, '/anabranch.v1.TrajectoryService/AppendSteps', bearer('many'));
    await until(() => server.counts().handlers === 4, 'three calls of one and one of the other are in progress');
    await expectLimit(createClient(RunService, many).listRuns({}), 'streamsPerPrincipal');
    await createClient(RunService, one).listRuns({});
    end.abort();
    session.destroy();
    await idle(server);
    await createClient(RunService, many).listRuns({});
  });

  it('do not count a call whose caller left before its key was known', async () => {
    const gate = Promise.withResolvers<void>();
    let asked = 0;
    const slow = (store: Store) =>
      wrappedStore(store, {
        findKey: async (digest) => {
          asked += 1;
          await gate.promise;
          return store.findKey(digest);
        },
      });
    await using server = await startTestServer({ database, settings, wrap: slow });
    const session = await http2Session(server.url);
    const headers = bearer('many');
    const plain = new RawCall(session, '/anabranch.v1.RunService/ListRuns', headers);
    const web = new RawCall(session, '/anabranch.v1.RunService/ListRuns', {
      ...headers,
      'content-type': 'application/grpc-web+proto',
    });
    for (const { stream } of [plain, web]) stream.end(inEnvelope(new Uint8Array()));
    await until(() => asked > 0 && server.counts().requests === 2, 'the key is looked up');
    for (const { stream } of [plain, web]) stream.close(8);
    await until(() => server.counts().requests === 0, 'both have left');
    gate.resolve();
    await createClient(RunService, transportOf(server, 'many')).listRuns({});
    session.destroy();
    await idle(server);
  });
});
