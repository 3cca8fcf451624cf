import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import type http2 from 'node:http2';
import os from 'node:os';
import path from 'node:path';
import { gzipSync } from 'node:zlib';
import type { DescMethod } from '@bufbuild/protobuf';
import { MethodOptions_IdempotencyLevel } from '@bufbuild/protobuf/wkt';
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
import { LIMITS } from '../../src/domain/limits.ts';
import { Gate, roleOf } from '../../src/rpc/gate.ts';
import { ENGINES, type Engine, type TestDatabase } from '../support/database.ts';
import { badTokens, newSigningKey } from '../support/issuer.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { withHeaders } from './headers.ts';
import { http2Session, inEnvelope, RawCall, rawCall, speak } from './raw.ts';
import { METHODS } from './rpcs/drive.ts';

const pathOf = ({ parent, name }: DescMethod) => `/${parent.typeName}/${name}`;

/** It is never asked: the server has its keys in a file. */
const ISSUER = 'https://issuer.example';

/** Bytes that no decoder accepts: a caller whose request was decoded gets another error. */
const NO_MESSAGE = Buffer.from([0, 0, 0, 0, 2, 0xff, 0xff]);

/** Bodies that a server must not wait for, nor open. They do not end. */
const UNFINISHED: Readonly<Record<string, { bytes: Uint8Array; headers: Record<string, string> }>> = {
  'half sent': { bytes: inEnvelope(Buffer.alloc(9)).subarray(0, 7), headers: {} },
  'said to have 4 GiB': { bytes: Buffer.from([0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]), headers: {} },
  'compressed 1000 : 1': {
    bytes: inEnvelope(gzipSync(Buffer.alloc(10 * LIMITS.messageBytes)), 1),
    headers: { 'grpc-encoding': 'gzip' },
  },
  'full of empty values': {
    bytes: inEnvelope(Buffer.alloc(LIMITS.messageBytes, '\x12\0')).subarray(0, 16_384),
    headers: {},
  },
  'half sent by Connect': { bytes: Buffer.alloc(9), headers: { 'content-type': 'application/proto' } },
  'compressed by Connect': {
    bytes: gzipSync(Buffer.alloc(LIMITS.messageBytes)).subarray(0, 500),
    headers: { 'content-type': 'application/proto', 'content-encoding': 'gzip' },
  },
};

describe('access', () => {
  const engine: Engine = ENGINES[0]!;
  let database: TestDatabase;
  let server: TestServer;
  let session: http2.ClientHttp2Session;
  const secrets = new Map<string, string>();
  const folder = mkdtempSync(path.join(os.tmpdir(), 'anabranch-access-'));
  const signing = newSigningKey();

  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    // A server on loopback without authentication creates the first keys.
    await using open = await startTestServer({ database });
    const admin = createClient(AdminService, createGrpcTransport({ baseUrl: open.url }));
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
    await open.stop();
    await using other = await startTestServer();
    const others = createClient(AdminService, createGrpcTransport({ baseUrl: other.url }));
    secrets.set('foreign', (await others.createKey({ name: 'ADMIN', role: Role.ADMIN })).secret);
    const [jwtJwks, principals] = ['keys.json', 'principals.yaml'].map((name) => path.join(folder, name));
    writeFileSync(jwtJwks!, JSON.stringify({ keys: [signing.jwk] }));
    writeFileSync(principals!, 'principals: [{ sub: agent, role: admin }]');
    const flags = { auth: 'required', jwtIssuer: ISSUER, jwtJwks: jwtJwks!, principals: principals! };
    server = await startTestServer({ database, flags, settings: { keyCheckMs: 20 } });
    session = await http2Session(server.url);
    // The key that expires is looked up until it has.
    for (let status: number | undefined = 0; status !== Code.Unauthenticated; ) {
      ({ status } = await grpc(TrajectoryService.method.getTree, bearer('expired')));
    }
  });
  afterAll(async () => {
    session?.destroy();
    await server?.stop();
    await database?.drop();
    rmSync(folder, { recursive: true });
  });

  const bearer = (called: string) => ({ authorization: `Bearer ${secrets.get(called)}` });

  const grpc = (method: DescMethod, headers: http2.OutgoingHttpHeaders) =>
    rawCall(session, pathOf(method), NO_MESSAGE, headers);

  async function post(method: DescMethod, type: string, headers: Record<string, string>): Promise<Response> {
    const given = { 'content-type': type, 'connect-protocol-version': '1', ...headers };
    return fetch(`${server.url}${pathOf(method)}`, { method: 'POST', headers: given, body: NO_MESSAGE });
  }

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

  /** Over every protocol, and before the body is decoded. */
  async function expectRefusedByAll(headers: Record<string, string>): Promise<void> {
    for (const method of METHODS) {
      const { status, message } = await grpc(method, headers);
      expect([method.name, status], message).toEqual([method.name, Code.Unauthenticated]);
      expect(message).not.toContain(headers.authorization?.slice(-20) ?? 'anb_');
      if (method.methodKind === 'bidi_streaming') continue; // not over HTTP/1.1, with any credential
      const web = await post(method, 'application/grpc-web+proto', headers);
      expect([method.name, web.status, web.headers.get('grpc-status')]).toEqual([method.name, 200, '16']);
      if (method.methodKind !== 'unary') continue;
      const connect = await post(method, 'application/proto', headers);
      expect([method.name, connect.status]).toEqual([method.name, 401]);
      expect(connect.headers.get('www-authenticate')).toBe('Bearer');
      expect(await connect.json()).toMatchObject({ code: 'unauthenticated' });
      if (method.idempotency !== MethodOptions_IdempotencyLevel.NO_SIDE_EFFECTS) continue;
      const got = await fetch(`${server.url}${pathOf(method)}?connect=v1&encoding=json&message={`, { headers });
      expect([method.name, got.status]).toEqual([method.name, 401]);
    }
  }

  const tokens = badTokens(ISSUER, signing);
  it.each(Object.keys(tokens))(
    'N2: a token that is %s is refused by every method and protocol, before the body is decoded',
    async (kind) => {
      const [make] = tokens[kind]!;
      await expectRefusedByAll({ authorization: `Bearer ${make()}` });
    },
  );

  describe.each(Object.keys(BAD))('N2: a credential that is %s', (kind) => {
    it('is refused by every method and protocol, before the body is decoded', async () => {
      await expectRefusedByAll(BAD[kind]!());
    });

    it.each(Object.keys(UNFINISHED))('is refused by every method with a body that is %s', async (body) => {
      const { bytes, headers } = UNFINISHED[body]!;
      const outcomes: unknown[] = [];
      // A connection of its own: a client that resets many streams is sent away.
      const own = await http2Session(server.url);
      for (const method of METHODS) {
        const { stream, outcome } = new RawCall(own, pathOf(method), { ...headers, ...BAD[kind]!() });
        stream.once('end', () => stream.close()).write(bytes);
        const { http, status } = await outcome;
        outcomes.push([method.name, status ?? http]);
      }
      own.destroy();
      const refused = headers['content-type'] === undefined ? Code.Unauthenticated : 401;
      expect(outcomes).toEqual(METHODS.map((method) => [method.name, refused]));
    });

    it('is refused where bytes of states are read by plain HTTP', async () => {
      const headers = BAD[kind]!();
      const paths = [`/states/${'0'.repeat(64)}`, '/trajectories/x/steps/0/states/y'];
      for (const path of paths) expect((await fetch(`${server.url}${path}`, { headers })).status).toBe(401);
    });
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
    expect(await grpc(TrajectoryService.method.listTrajectories, bearer('READ'))).toMatchObject({
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
      const { status } = await grpc(method, bearer(held));
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
    expect((await grpc(getTree, BAD.missing!())).status).toBe(Code.InvalidArgument);
    expect((await grpc(getTrajectory, BAD.missing!())).status).toBe(Code.Unauthenticated);
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
