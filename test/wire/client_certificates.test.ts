import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import type http2 from 'node:http2';
import os from 'node:os';
import path from 'node:path';
import tls from 'node:tls';
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { GetServerInfoResponseSchema, WatchRequestSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { connectClient } from '../../src/client/index.ts';
import { newSecret } from '../../src/domain/access.ts';
import { runCli } from '../cli/run_cli.ts';
import { createAuthority, type Issued, type IssuedFiles, writeIssued } from '../support/certificates.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { inEnvelope, openEnvelopes, RawCall, until } from './raw.ts';
import { Caller, expectNoData, expectRefusedByAll, expectRefusedUnfinished, type Refusal } from './refused.ts';

const SPIFFE = 'spiffe://cluster.example/ns/training/sa/worker';
const MAPPING = `
principals:
  - san: spiffe://cluster.example/ns/training/*
    role: work
    namespaces: [training]
  - san: worker.example
    role: read
`;

/** Of the server, of its clients, and of others. */
const authority = createAuthority('Authority of the server');
const clients = createAuthority('Authority of the clients');
const strangers = createAuthority('Authority of strangers');
const secret = newSecret();

describe.each(ENGINES)('client certificates, on %s', (engine) => {
  let folder: string;
  let server: TestServer;
  let files: IssuedFiles;
  let clientCa: string;
  const log: string[] = [];
  const callers = new Set<Caller>();
  beforeAll(() => {
    folder = mkdtempSync(path.join(os.tmpdir(), 'anabranch-mtls-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));
  beforeEach(async () => {
    log.length = 0;
    clientCa = path.join(folder, 'clients.crt');
    const [principals, adminKeyFile] = [path.join(folder, 'principals.yaml'), path.join(folder, 'admin.key')];
    writeFileSync(clientCa, clients.cert);
    writeFileSync(principals, MAPPING);
    writeFileSync(adminKeyFile, secret);
    files = writeIssued(authority.issue());
    server = await startTestServer({
      engine,
      flags: { auth: 'required', ...files, clientCa, principals, adminKeyFile },
      settings: { keyCheckMs: 20 },
      portLimits: { certificateMs: 5 },
      onLog: (line) => log.push(line),
    });
  });
  afterEach(async () => {
    for (const caller of callers) caller.close();
    callers.clear();
    await server.stop();
  });

  const worker = (more = {}) => clients.issue({ commonName: 'worker', names: [SPIFFE], ...more });

  async function callerWith(issued: Issued | undefined, more: tls.ConnectionOptions = {}): Promise<Caller> {
    const caller = await Caller.connect(server.url, { ca: authority.cert, ...issued, ...more });
    callers.add(caller);
    return caller;
  }

  async function connect(issued: Issued | undefined): Promise<http2.ClientHttp2Session> {
    return (await callerWith(issued)).session;
  }

  /** Returns the name and the role of the caller, or the fault or the reason of the refusal. */
  async function whoCalls(session: http2.ClientHttp2Session, headers = {}): Promise<unknown> {
    const call = new RawCall(session, '/anabranch.v1.ServerService/GetServerInfo', headers);
    call.stream.end(inEnvelope(Buffer.alloc(0)));
    const { status, reason, metadata, body } = await call.outcome;
    if (status !== 0) return metadata.fault ?? reason ?? 'no answer';
    const { caller } = fromBinary(GetServerInfoResponseSchema, openEnvelopes(body)[0]!);
    return [caller!.name, caller!.role];
  }

  const WATCH_RUNS = toBinary(WatchRequestSchema, create(WatchRequestSchema, { subjects: { it: { runs: {} } } }));

  const bearer = (token: string) => ({ authorization: `Bearer ${token}` });
  const WORKER = [`san:${SPIFFE}`, Role.WORK];

  describe('N2: a certificate of the client', () => {
    it('is a credential by its only URI, else by its only DNS name', async () => {
      expect(await whoCalls(await connect(worker()))).toEqual(WORKER);
      expect(
        await whoCalls(await connect(worker({ names: ['worker.example', SPIFFE, 'other.example', '10.0.0.1'] }))),
      ).toEqual(WORKER);
      expect(await whoCalls(await connect(worker({ names: ['10.0.0.1', 'Worker.Example'] })))).toEqual([
        'san:worker.example',
        Role.READ,
      ]);
    });

    it('is shown by the client of this package, and by the command line', async () => {
      const { cert, key } = worker();
      const client = connectClient({ address: server.url, ca: authority.cert, cert, key }, {});
      expect((await client.server.getServerInfo({})).caller).toMatchObject({ name: WORKER[0], namespace: 'training' });
      client.close();
      const { tlsCert, tlsKey } = writeIssued({ cert, key });
      const { tlsCert: caFile } = writeIssued({ cert: authority.cert, key: '' });
      const env = { ANABRANCH_CA_FILE: caFile, ANABRANCH_CERT_FILE: tlsCert, ANABRANCH_KEY_FILE: tlsKey };
      expect(await runCli(['runs', '--address', server.url], { env })).toMatchObject({ code: 0, stderr: '' });
      const alone = await runCli(['runs', '--address', server.url], { env: { ...env, ANABRANCH_KEY_FILE: '' } });
      expect(alone).toMatchObject({ code: 2, stderr: expect.stringMatching(/^ANABRANCH_CERT_FILE and /) });
    });

    const BAD: Readonly<Record<string, readonly [() => Issued | undefined, string]>> = {
      missing: [() => undefined, 'missing'],
      'of another authority': [() => strangers.issue({ names: [SPIFFE] }), 'untrusted'],
      'of an authority with the same name': [
        () => createAuthority('Authority of the clients').issue({ names: [SPIFFE] }),
        'untrusted',
      ],
      'of the authority of the server': [() => authority.issue({ names: [SPIFFE] }), 'untrusted'],
      expired: [() => worker({ from: new Date('2020-01-01'), until: new Date('2021-01-01') }), 'expired'],
      'not valid yet': [() => worker({ from: new Date(Date.now() + 3_600_000) }), 'untrusted'],
      'without a name': [() => worker({ names: [] }), 'names'],
      'of an address': [() => worker({ names: ['10.0.0.1'] }), 'names'],
      'of two URIs': [() => worker({ names: [SPIFFE, `${SPIFFE}2`] }), 'names'],
      'of two DNS names': [() => worker({ names: ['worker.example', 'other.example'] }), 'names'],
      'of one name that looks like two': [() => worker({ names: ['a.example, DNS:worker.example'] }), 'names'],
      'of a name without a role': [() => worker({ names: ['spiffe://cluster.example/ns/other'] }), 'PERMISSION_DENIED'],
    };

    it.each(Object.entries(BAD))(
      'that is %s is refused by every method and protocol, before the body is decoded',
      async (_kind, [make, told]) => {
        const caller = await callerWith(make());
        const refusal: Refusal =
          told === 'PERMISSION_DENIED' ? { code: Code.PermissionDenied } : { code: Code.Unauthenticated, fault: told };
        await expectRefusedByAll(caller, {}, refusal, SPIFFE);
        for (const body of ['compressed 1000 : 1', 'half sent by Connect'])
          await expectRefusedUnfinished(caller, body, {}, refusal);
        await expectNoData(caller, {}, refusal);
        // Health needs no credential, and an API key counts on any connection.
        const health = new RawCall(caller.session, '/grpc.health.v1.Health/Check');
        health.stream.end(inEnvelope(Buffer.alloc(0)));
        expect((await health.outcome).status).toBe(0);
        expect(await whoCalls(caller.session, bearer(secret))).toEqual(['admin', Role.ADMIN]);
      },
    );

    it('does not count beside a header, good or bad', async () => {
      const session = await connect(worker());
      expect(await whoCalls(session, bearer(secret))).toEqual(['admin', Role.ADMIN]);
      expect(await whoCalls(session, bearer(newSecret()))).toBe('unknown');
      expect(await whoCalls(session, { authorization: 'Basic YTpi' })).toBe('malformed');
      expect(await whoCalls(session)).toEqual(WORKER);
    });

    it('is a credential over HTTP/1.1 and for the bytes of states', async () => {
      const { cert, key } = worker();
      const socket = tls.connect({ port: server.port, host: '127.0.0.1', ca: authority.cert, cert, key });
      await once(socket, 'secureConnect');
      const ask = async (target: string) => {
        socket.write(`GET ${target} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
        return String((await once(socket, 'data'))[0]).split('\r\n')[0];
      };
      expect(await ask(`/states/${'0'.repeat(64)}`)).toBe('HTTP/1.1 404 Not Found');
      socket.destroy();
    });

    it.each(['TLSv1.2', 'TLSv1.3'] as const)(
      'is shown in each handshake of %s: a resumed session is refused by every method and protocol',
      async (version) => {
        const options = {
          port: server.port,
          host: '127.0.0.1',
          ca: authority.cert,
          maxVersion: version,
          minVersion: version,
        };
        const first = tls.connect({ ...options, ...worker(), ALPNProtocols: ['http/1.1'] });
        const saved = once(first, 'session');
        await once(first, 'secureConnect');
        // TLS 1.3 sends a session with the first answer.
        first.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n');
        const session = version === 'TLSv1.2' ? first.getSession() : ((await saved)[0] as Buffer);
        first.destroy();
        const again = await callerWith(undefined, { session, maxVersion: version, minVersion: version });
        expect((again.session.socket as tls.TLSSocket).isSessionReused()).toBe(false);
        await expectRefusedByAll(again, {}, { code: Code.Unauthenticated, fault: 'missing' });
      },
    );

    it('is refused on an open connection, and ends its streams, when it has expired', async () => {
      const session = await connect(worker({ until: new Date(Date.now() + 2500) }));
      expect(await whoCalls(session)).toEqual(WORKER);
      const watching = new RawCall(session, '/anabranch.v1.ServerService/Watch');
      watching.stream.end(inEnvelope(WATCH_RUNS));
      await watching.messages(1);
      expect((await watching.outcome).metadata.fault).toBe('expired');
      expect(await whoCalls(session)).toBe('expired');
      expect(session.closed).toBe(false);
    });
  });

  describe('N2: authorities of client certificates that are replaced', () => {
    it('end streams and connections of the clients that they do not know, and the clients connect again', async () => {
      const session = await connect(worker());
      const watching = new RawCall(session, '/anabranch.v1.ServerService/Watch');
      watching.stream.end(inEnvelope(WATCH_RUNS));
      await watching.messages(1);
      const goneAway = once(session, 'goaway');
      const next = createAuthority('Next authority');
      writeFileSync(clientCa, next.cert);
      expect((await watching.outcome).reason).toBe('SERVER_DRAINING');
      await goneAway;
      expect(await whoCalls(await connect(worker()))).toBe('untrusted');
      expect(await whoCalls(await connect(next.issue({ names: [SPIFFE] })))).toEqual(WORKER);
    });

    it('may be several, and the connections of clients without certificates stay', async () => {
      const other = await connect(undefined);
      expect(await whoCalls(other, bearer(secret))).toEqual(['admin', Role.ADMIN]);
      const next = createAuthority('Next authority');
      writeFileSync(clientCa, `${clients.cert}${next.cert}`);
      const isUsed = () => log.filter((line) => line.includes('uses the certificate')).length === 2;
      await until(isUsed, 'the authorities are used');
      for (const issued of [worker(), next.issue({ names: [SPIFFE] })]) {
        expect(await whoCalls(await connect(issued))).toEqual(WORKER);
      }
      expect(await whoCalls(other, bearer(secret))).toEqual(['admin', Role.ADMIN]);
      expect(other.closed).toBe(false);
    });

    it.each(['', 'garbage'])('by %j stay, with one warning', async (text) => {
      writeFileSync(clientCa, text);
      await until(() => log.some((line) => line.includes('clients.crt holds no certificate')), 'the server warns');
      expect(await whoCalls(await connect(worker()))).toEqual(WORKER);
    });

    it('stay when the certificate of the server is replaced under load, and no call fails', async () => {
      const uses = () => log.filter((line) => line.includes('uses the certificate')).length;
      const stays = await connect(worker());
      const load = async () => {
        while (uses() < 6) expect(await whoCalls(await connect(worker()))).toEqual(WORKER);
      };
      const replace = async () => {
        while (uses() < 6) {
          const before = uses();
          const { cert, key } = authority.issue();
          writeFileSync(files.tlsCert, cert);
          writeFileSync(files.tlsKey, key);
          await until(() => uses() > before, 'the new one is used');
        }
      };
      await Promise.all([load(), load(), replace()]);
      expect(await whoCalls(stays)).toEqual(WORKER);
      expect(stays.closed).toBe(false);
    });
  });
});
