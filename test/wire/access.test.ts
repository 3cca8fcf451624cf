import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { Code, createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { Health } from '../../gen/es/grpc/health/v1/health_pb.js';
import { reasonOf } from '../../src/client/index.ts';
import { includesRole, newSecret, ROLES } from '../../src/domain/access.ts';
import { ANONYMOUS } from '../../src/domain/caller.ts';
import { Gate, roleOf } from '../../src/rpc/gate.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { badTokens, claimsOf, newSigningKey, tokenOf } from '../support/issuer.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { withHeaders } from './headers.ts';
import { asAdmin } from './keys.ts';
import { speak } from './raw.ts';
import { Caller, expectNoData, expectRefusedByAll, expectRefusedUnfinished, pathOf, UNFINISHED } from './refused.ts';
import { METHODS } from './rpcs/drive.ts';

const UNAUTHENTICATED = { code: Code.Unauthenticated } as const;

/** It is never asked: the server has its keys in a file. */
const ISSUER = 'https://issuer.example';

describe.each(ENGINES)('access, on %s', (engine) => {
  let database: TestDatabase;
  let server: TestServer;
  let caller: Caller;
  const secrets = new Map<string, string>();
  const folder = mkdtempSync(path.join(os.tmpdir(), 'anabranch-access-'));
  const signing = newSigningKey();
  /** Of a server that accepts API keys and the tokens of an issuer. */
  let flags: Readonly<Record<string, string>>;

  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    await asAdmin(database, async (admin) => {
      const make = async (called: string, role: Role, more = {}) => {
        const { key, secret } = await admin.createKey({ name: called, role, namespaces: ['default'], ...more });
        secrets.set(called, secret);
        return key!.id;
      };
      for (const role of ROLES) await make(role, Role[role]);
      await admin.revokeKey({ keyId: await make('revoked', Role.ADMIN) });
      await make('expired', Role.ADMIN, { validFor: { seconds: 1n } });
      await make('doomed', Role.ADMIN);
      await make('two', Role.WRITE, { namespaces: ['a', 'b'] });
    });
    await using other = await createMigratedDatabase(engine);
    const foreign = await asAdmin(other, (admin) => admin.createKey({ name: 'ADMIN', role: Role.ADMIN }));
    secrets.set('foreign', foreign.secret);
    const [jwtJwks, principals] = ['keys.json', 'principals.yaml'].map((name) => path.join(folder, name));
    writeFileSync(jwtJwks!, JSON.stringify({ keys: [signing.jwk] }));
    writeFileSync(principals!, 'principals: [{ sub: agent, role: admin }]');
    flags = { auth: 'required', jwtIssuer: ISSUER, jwtJwks: jwtJwks!, principals: principals! };
    server = await startTestServer({ database, flags, settings: { keyCheckMs: 20 } });
    caller = await Caller.connect(server.url);
    // The key that expires is looked up until it has.
    for (let status: number | undefined = 0; status !== Code.Unauthenticated; ) {
      ({ status } = await caller.grpc(TrajectoryService.method.getTree, bearer('expired')));
    }
  });
  afterAll(async () => {
    caller?.close();
    await server?.stop();
    await database?.drop();
    rmSync(folder, { recursive: true });
  });

  const bearer = (called: string) => ({ authorization: `Bearer ${secrets.get(called)}` });

  const BAD: Readonly<Record<string, () => Record<string, string>>> = {
    missing: () => ({}),
    'malformed: another scheme': () => ({ authorization: 'Basic YTpi' }),
    'malformed: garbage': () => ({ authorization: 'Bearer garbage' }),
    'malformed: mistyped': () => ({ authorization: `Bearer ${secrets.get('ADMIN')!.slice(0, -1)}_` }),
    'malformed: 8 KiB': () => ({ authorization: `Bearer ${'a'.repeat(8192)}` }),
    unknown: () => ({ authorization: `Bearer ${newSecret()}` }),
    'of another installation': () => bearer('foreign'),
    revoked: () => bearer('revoked'),
    expired: () => bearer('expired'),
  };

  const tokens = badTokens(ISSUER, signing);
  it.each(Object.keys(tokens))(
    'N2: a token that is %s is refused by every method and protocol, before the body is decoded',
    async (kind) => {
      const [make, fault] = tokens[kind]!;
      const headers = { authorization: `Bearer ${make()}` };
      await expectRefusedByAll(caller, headers, { ...UNAUTHENTICATED, fault });
      await expectRefusedUnfinished(caller, 'compressed 1000 : 1', headers, UNAUTHENTICATED);
    },
  );

  describe.each(Object.keys(BAD))('N2: a credential that is %s', (kind) => {
    it('is refused by every method and protocol, before the body is decoded', () =>
      expectRefusedByAll(caller, BAD[kind]!(), UNAUTHENTICATED));

    it.each(Object.keys(UNFINISHED))('is refused by every method with a body that is %s', (body) =>
      expectRefusedUnfinished(caller, body, BAD[kind]!(), UNAUTHENTICATED),
    );

    it('is refused where data is read by plain HTTP', () => expectNoData(caller, BAD[kind]!(), UNAUTHENTICATED));
  });

  it.each([
    ['of 1 MiB', `Authorization: Bearer ${'a'.repeat(1024 * 1024)}`, 431],
    ['with U+0000', 'Authorization: Bearer anb_\0', 400],
    ['with CR', 'Authorization: Bearer anb_\rx', 400],
    ['that goes on after CR LF', 'Authorization: Bearer anb_\r\n x', 400],
    ['that another header follows after CR LF', 'Authorization: Bearer anb_\r\nx: y', 401],
  ])('N2: a key %s is refused over HTTP/1.1, and the server serves others', async (_what, header, status) => {
    const head = `POST ${pathOf(TrajectoryService.method.getTree)} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json`;
    const said = await speak(server.port, `${head}\r\nContent-Length: 2\r\nConnection: close\r\n${header}\r\n\r\n{}`);
    expect(said).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
    expect(await caller.grpc(TrajectoryService.method.listTrajectories, bearer('READ'))).toMatchObject({
      status: Code.InvalidArgument,
    });
  });

  it('N2: two credentials in one call are refused', async () => {
    const both = ['ADMIN', 'READ'].map((called) => `Authorization: Bearer ${secrets.get(called)}\r\n`).join('');
    const path = pathOf(TrajectoryService.method.getTree);
    const head = `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n`;
    expect(await speak(server.port, `${head}${both}Connection: close\r\n\r\n{}`, 500)).toMatch(
      /^HTTP\/1\.1 401 .*more than one header/s,
    );
  });

  it.each(ROLES)('N2: the role %s may call exactly the methods that need it or less', async (held) => {
    for (const method of METHODS) {
      const { status } = await caller.grpc(method, bearer(held));
      const mayCall = includesRole(held, roleOf(method));
      if (mayCall) expect([method.name, status]).not.toEqual([method.name, Code.PermissionDenied]);
      else expect([method.name, status]).toEqual([method.name, Code.PermissionDenied]);
      expect([method.name, status]).not.toEqual([method.name, Code.Unauthenticated]);
    }
  });

  const transport = (called: string, namespace?: string) => {
    const named = namespace === undefined ? {} : { 'anabranch-namespace': namespace };
    return createGrpcTransport({
      baseUrl: server.url,
      interceptors: [withHeaders({ ...bearer(called), ...named })],
    });
  };

  it('negative control of N2: a method whose gate is missing, or comes after the body, is found', async () => {
    const { getTree, getTrajectory } = TrajectoryService.method;
    const pass = Gate.prototype.pass;
    vi.spyOn(Gate.prototype, 'pass').mockImplementation(function (this: Gate, head, needed, called, serve) {
      if (head.headers[':path'] !== pathOf(getTree)) return pass.call(this, head, needed, called, serve);
      serve({ caller: ANONYMOUS, credential: undefined });
    });
    onTestFinished(() => void vi.restoreAllMocks());
    // What such a method answers is about the body, so the tests of all methods above fail.
    expect((await caller.grpc(getTree, BAD.missing!())).status).toBe(Code.InvalidArgument);
    expect((await caller.grpc(getTrajectory, BAD.missing!())).status).toBe(Code.Unauthenticated);
  });

  it('N2: GetServerInfo tells the caller who it is', async () => {
    const info = async (called: string, namespace?: string) =>
      (await createClient(ServerService, transport(called, namespace)).getServerInfo({})).caller;
    expect(await info('WORK')).toMatchObject({
      name: 'WORK',
      role: Role.WORK,
      namespaces: ['default'],
      namespace: 'default',
    });
    expect(await info('two', 'b')).toMatchObject({ name: 'two', namespaces: ['a', 'b'], namespace: 'b' });
  });

  it('N1: a key is for its namespaces only, and one for several names one of them', async () => {
    const trees = (called: string, namespace?: string) =>
      createClient(TrajectoryService, transport(called, namespace)).listTrajectories({});
    await expect(trees('two')).rejects.toSatisfy((error) => reasonOf(error) === 'INVALID_REQUEST');
    await expect(trees('two', 'c')).rejects.toSatisfy((error) => reasonOf(error) === 'PERMISSION_DENIED');
    await expect(trees('two', 'No Name')).rejects.toSatisfy((error) => reasonOf(error) === 'INVALID_REQUEST');
    const trajectories = createClient(TrajectoryService, transport('two', 'a'));
    const { trajectory } = await trajectories.createTrajectory({ name: 'mine' });
    expect((await trees('two', 'a')).trajectories.map(({ id }) => id)).toEqual([trajectory!.id]);
    expect((await trees('two', 'b')).trajectories).toEqual([]);
  });

  it('health, reflection and the page need no credential', async () => {
    const health = createClient(Health, createGrpcTransport({ baseUrl: server.url }));
    await expect(health.check({})).resolves.toBeDefined();
    expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
    expect((await fetch(`${server.url}/`)).status).toBe(200);
  });

  it('N2: a stream whose key cannot be checked sends nothing until it can, and then everything', async () => {
    await using own = await createMigratedDatabase(engine);
    const { secret } = await asAdmin(own, (admin) => admin.createKey({ name: 'follower', role: Role.READ }));
    let isDown = false;
    const wrap = (store: Store) =>
      wrappedStore(store, {
        findValidKeys: async (ids) => {
          if (isDown) throw new Error('the database is down');
          return store.findValidKeys(ids);
        },
      });
    const settings = { keyCheckMs: 20, keyTrustMs: 2000 };
    await using guarded = await startTestServer({ database: own, flags, settings, wrap });
    const [keyed, other] = [secret, tokenOf(signing, claimsOf(ISSUER))].map((token) => {
      const interceptors = [withHeaders({ authorization: `Bearer ${token}` })];
      return createClient(TrajectoryService, createGrpcTransport({ baseUrl: guarded.url, interceptors }));
    });
    const { trajectory } = await other!.createTrajectory({});
    const trajectoryId = trajectory!.id;
    const append = (stepNumber: bigint) => other!.appendStep({ trajectoryId, step: { stepNumber } });
    const left = new AbortController();
    const follow = (client: typeof keyed) => {
      const seen: bigint[] = [];
      const read = async () => {
        const answers = client!.readSteps({ trajectoryId, follow: true }, { signal: left.signal });
        for await (const { steps } of answers) seen.push(...steps.map(({ stepNumber }) => stepNumber));
      };
      read().catch(() => undefined); // it is cut off at the end
      return seen;
    };
    const [kept, free] = [follow(keyed), follow(other)];
    await append(0n);
    await expect.poll(() => [kept, free]).toEqual([[0n], [0n]]);
    isDown = true;
    const reason = () => keyed!.listTrajectories({}).then(() => 'none', reasonOf);
    await expect.poll(reason, { timeout: 10_000 }).toBe('DATABASE_UNAVAILABLE');
    await append(1n);
    await expect.poll(() => free).toEqual([0n, 1n]);
    // An answer on the connection of the other follower comes after what it has been sent.
    expect(await reason()).toBe('DATABASE_UNAVAILABLE');
    expect(kept).toEqual([0n]);
    isDown = false;
    await expect.poll(() => kept).toEqual([0n, 1n]);
    left.abort();
  });

  it('N2: an append stream whose key is revoked ends, after the acks of all steps that the server had read', async () => {
    const trajectories = createClient(TrajectoryService, transport('doomed'));
    const admin = createClient(AdminService, transport('ADMIN'));
    const { trajectory } = await trajectories.createTrajectory({});
    const acked = Promise.withResolvers<void>();
    async function* frames() {
      yield { open: { trajectoryId: trajectory!.id, writerId: 'w' } };
      yield { steps: [{ stepNumber: 0n }] };
      await acked.promise;
      const { keys } = await admin.listKeys({ pageSize: 1000 });
      await admin.revokeKey({ keyId: keys.find(({ name }) => name === 'doomed')!.id });
      await new Promise(() => undefined);
    }
    const seen: bigint[] = [];
    const read = async () => {
      for await (const { ack } of trajectories.appendSteps(frames())) {
        if (ack === undefined) continue;
        seen.push(ack.nextStepNumber);
        acked.resolve();
      }
    };
    await expect(read()).rejects.toSatisfy((error) => reasonOf(error) === 'UNAUTHENTICATED');
    expect(seen).toEqual([1n]);
    await expect(trajectories.listTrajectories({})).rejects.toSatisfy((error) => reasonOf(error) === 'UNAUTHENTICATED');
  });
});
