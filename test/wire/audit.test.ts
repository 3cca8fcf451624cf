import { randomUUID } from 'node:crypto';
import { Code, createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { newSecret, unauthenticated } from '../../src/domain/access.ts';
import { isAudited, Refusals } from '../../src/rpc/audit.ts';
import { toConnectError } from '../../src/rpc/errors.ts';
import type { Logger } from '../../src/stream/settings.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { withHeaders } from './headers.ts';
import { asAdmin } from './keys.ts';
import { METHODS } from './rpcs/drive.ts';
import { NOBODY } from './rpcs/scene.ts';

describe.each(ENGINES)('N3: the audit log, on %s', (engine) => {
  let database: TestDatabase;
  let server: TestServer;
  let secret: string;
  let bobs: string;
  const log: string[] = [];

  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    await asAdmin(database, async (admin) => {
      secret = (await admin.createKey({ name: 'ann', role: Role.ADMIN, namespaces: ['team-a'] })).secret;
      bobs = (await admin.createKey({ name: 'bob', role: Role.WORK, namespaces: ['team-a'] })).secret;
    });
    server = await startTestServer({
      database,
      settings: { authenticated: true },
      onLog: (line) => log.push(line),
    });
  });
  afterAll(async () => {
    await server?.stop();
    await database?.drop();
  });
  beforeEach(() => {
    log.length = 0;
  });

  const audited = () => log.map((line) => JSON.parse(line) as Record<string, unknown>).filter(({ audit }) => audit);

  const transportOf = (token: string) =>
    createGrpcTransport({
      baseUrl: server.url,
      interceptors: [withHeaders({ authorization: `Bearer ${token}` })],
    });

  it('has who called what, on which resources, with what result, and no secret', async () => {
    const admin = createClient(AdminService, transportOf(secret));
    const made = await admin.createKey({ name: 'eve', role: Role.WORK, namespaces: ['team-a'] });
    await admin.revokeKey({ keyId: made.key!.id });
    await createClient(RunService, transportOf(secret))
      .deleteRun({ runId: NOBODY })
      .catch(() => undefined);
    const who = { level: 30, audit: true, actor: 'ann', namespace: 'team-a' };
    expect(audited()).toMatchObject([
      {
        ...who,
        rpc: 'anabranch.v1.AdminService/CreateKey',
        resources: { name: 'eve', role: 'ROLE_WORK', namespaces: ['team-a'] },
        result: 'ok',
      },
      { ...who, rpc: 'anabranch.v1.AdminService/RevokeKey', resources: { keyId: made.key!.id }, result: 'ok' },
      { ...who, rpc: 'anabranch.v1.RunService/DeleteRun', resources: { runId: NOBODY }, result: 'NotFound' },
    ]);
    for (const line of log) expect(line).not.toContain(made.secret);
  });

  it('has streams when they end, also those that their caller left', async () => {
    const admin = createClient(AdminService, transportOf(secret));
    for await (const _ of admin.exportArchive({}));
    const left = new AbortController();
    const leave = async () => {
      for await (const _ of admin.exportArchive({}, { signal: left.signal })) left.abort();
    };
    await expect(leave()).rejects.toMatchObject({ code: Code.Canceled });
    const results = () => audited().map(({ rpc, result }) => [rpc, result]);
    const rpc = 'anabranch.v1.AdminService/ExportArchive';
    await expect.poll(results).toHaveLength(2);
    expect(results()[0]).toEqual([rpc, 'ok']);
    expect(results()[1]![0]).toBe(rpc);
  });

  it('has grants that fence a writer of another principal, also under the same writer_id', async () => {
    const [ann, bob] = [secret, bobs].map((token) => createClient(TrajectoryService, transportOf(token)));
    const trajectoryId = randomUUID();
    const opened = async (by: typeof ann, writer: object) => {
      async function* frames() {
        yield { open: { trajectoryId, ...writer } };
      }
      for await (const _ of by!.appendSteps(frames()));
    };
    const wrote = async (by: typeof ann, writer: object) => {
      const { results } = await by!.appendBatch({ entries: [{ trajectoryId, ...writer }] });
      expect(results[0]!.error).toBeUndefined();
    };
    const audit = (actor: string, rpc: string) => {
      const resources = { trajectoryId };
      return [{ actor, namespace: 'team-a', rpc: `anabranch.v1.TrajectoryService/${rpc}`, resources, result: 'ok' }];
    };
    for (const [by, begins, writer, expected] of [
      [ann, opened, { writerId: 'a', create: { trajectory: { trajectoryId, requestId: 'a' } } }, []],
      [ann, wrote, { writerId: 'b', takeOverEpoch: 1n }, []],
      [bob, wrote, { writerId: 'b' }, audit('bob', 'AppendBatch')],
      [bob, opened, { writerId: 'c', takeOverEpoch: 3n }, []],
      [ann, opened, { writerId: 'd', takeOverEpoch: 4n }, audit('ann', 'AppendSteps')],
      [bob, opened, { writerId: 'd' }, audit('bob', 'AppendSteps')],
      [ann, wrote, { writerId: 'e', takeOverEpoch: 6n }, audit('ann', 'AppendBatch')],
    ] as const) {
      log.length = 0;
      await begins(by, writer);
      expect(audited(), writer.writerId).toMatchObject(expected);
      expect(audited()).toHaveLength(expected.length);
    }
  });

  it('has refused credentials with their address', async () => {
    const trajectories = createClient(TrajectoryService, transportOf(newSecret()));
    await trajectories.listTrajectories({}).catch(() => undefined);
    const refused = { level: 40, audit: true, address: '127.0.0.1', result: 'Unauthenticated', unlogged: 0 };
    expect(audited()[0]).toMatchObject(refused);
  });

  it('counts the refusals that have no line, and forgets the address that was logged longest ago', () => {
    const lines: object[] = [];
    const logger = { warn: (fields: object) => void lines.push(fields) } as unknown as Logger;
    const refusals = new Refusals(logger);
    const error = toConnectError(unauthenticated('unknown'), 'read', logger);
    for (const now of [0, 10, 999, 1000]) refusals.refused('a', error, now);
    expect(lines).toMatchObject([
      { address: 'a', unlogged: 0 },
      { address: 'a', unlogged: 2 },
    ]);
    for (let i = 0; i < 1000; i += 1) refusals.refused(`other ${i}`, error, 1500);
    refusals.refused('a', error, 1600);
    expect(lines.at(-1)).toMatchObject({ address: 'a', unlogged: 0 });
  });
});

it('N3: the methods that manage keys, delete, override, retain, import, export or back up are audited, and no others', () => {
  const expected = /^(Create|Revoke)Key$|^Delete(?!Tag$)|^Override|^(Apply|Set)Retention|Archive$|^BackupDatabase$/;
  const names = (methods: typeof METHODS) => methods.map(({ name }) => name);
  expect(names(METHODS.filter(isAudited))).toEqual(names(METHODS).filter((name) => expected.test(name)));
});
