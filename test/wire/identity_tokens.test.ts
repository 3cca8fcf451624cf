import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, reasonOf } from '../../src/client/index.ts';
import { StartError } from '../../src/start_error.ts';
import { ENGINES } from '../support/database.ts';
import { requireIntact } from '../support/intact.ts';
import {
  badTokens,
  claimsOf,
  inSeconds,
  newSigningKey,
  type SigningKey,
  startSecureIssuer,
  TestIssuer,
  tokenOf,
} from '../support/issuer.ts';
import { startTestServer, type TestServer, type TestServerOptions } from '../support/test-server.ts';
import { withHeaders } from './headers.ts';
import { http2Session, RawCall, until } from './raw.ts';

const MAPPING = `
principals:
  - sub: agent
    role: write
    namespaces: [team-a, team-b]
  - sub: system:serviceaccount:training:*
    role: work
    namespaces: [training]
  - claim: groups
    value: operators
    name: operator
    role: admin
`;

describe.each(ENGINES)('tokens of an identity provider, on %s', (engine) => {
  let folder: string;
  let issuer: TestIssuer;
  const open = new Set<TestServer>();
  const clients = new Set<AnabranchClient>();
  beforeAll(() => {
    folder = mkdtempSync(path.join(os.tmpdir(), 'anabranch-tokens-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));
  beforeEach(async () => {
    issuer = await TestIssuer.start();
    writeFileSync(mappingFile(), MAPPING);
  });
  afterEach(async () => {
    for (const client of clients) client.close();
    clients.clear();
    for (const server of open) await server.stop();
    open.clear();
    await issuer.stop();
  });

  const mappingFile = () => path.join(folder, 'principals.yaml');

  interface Scene {
    readonly server: TestServer;
    readonly log: string[];
  }

  async function start(
    flags: Readonly<Record<string, string>> = {},
    identityTimes: TestServerOptions['identityTimes'] = {},
  ): Promise<Scene> {
    const log: string[] = [];
    const server = await startTestServer({
      engine,
      flags: { auth: 'required', jwtIssuer: issuer.url, principals: mappingFile(), ...flags },
      settings: { keyCheckMs: 20 },
      identityTimes: { watchMs: 5, ...identityTimes },
      onLog: (line) => log.push(line),
    });
    open.add(server);
    return { server, log };
  }

  const transportOf = ({ server }: Scene, token: string, namespace = 'team-a') => {
    const headers = { authorization: `Bearer ${token}`, 'anabranch-namespace': namespace };
    return createGrpcTransport({ baseUrl: server.url, interceptors: [withHeaders(headers)] });
  };

  const clientOf = ({ server }: Scene, token: string): AnabranchClient => {
    const client = connectClient({ address: server.url, token, namespace: 'team-a' }, {});
    clients.add(client);
    return client;
  };

  async function whoCalls(scene: Scene, token: string, namespace?: string) {
    const { caller } = await createClient(ServerService, transportOf(scene, token, namespace)).getServerInfo({});
    return [caller!.name, caller!.role, caller!.namespace];
  }

  /** Returns `ok`, or the reason of the refusal. */
  async function outcome(scene: Scene, token: string, namespace?: string): Promise<string> {
    try {
      await whoCalls(scene, token, namespace);
      return 'ok';
    } catch (error) {
      return String(reasonOf(error));
    }
  }

  /** Opens a stream. `ended` rejects when it ends. */
  async function watch(scene: Scene, token: string): Promise<{ readonly ended: Promise<void> }> {
    const client = createClient(ServerService, transportOf(scene, token));
    const messages = client.watch({ subjects: { it: { runs: {} } } })[Symbol.asyncIterator]();
    await messages.next();
    const read = async () => {
      while ((await messages.next()).done !== true);
    };
    const ended = read();
    ended.catch(() => undefined);
    return { ended };
  }

  const isOpen = ({ ended }: { readonly ended: Promise<void> }) =>
    Promise.race([ended.catch(() => false), Promise.resolve(true)]);

  const PATIENT = { timeout: 10_000 };

  const AGENT = ['sub:agent', Role.WRITE, 'team-a'];

  describe('N2: a token of the issuer', () => {
    it.each(['RS256', 'RS512', 'PS256', 'PS384', 'ES256', 'ES384', 'ES512', 'EdDSA'])(
      'is accepted if it is signed by %s, and is looked at once',
      async (alg) => {
        issuer.keys = [newSigningKey('ES256'), newSigningKey(alg)];
        const scene = await start();
        const token = issuer.token({}, issuer.keys[1]);
        expect(await whoCalls(scene, token)).toEqual(AGENT);
        issuer.answer = (_request, response) => void response.writeHead(500).end();
        expect(await whoCalls(scene, token, 'team-b')).toEqual(['sub:agent', Role.WRITE, 'team-b']);
        expect(issuer.fetches).toBe(1);
      },
    );

    it('has the role and the namespaces that the mapping gives to its subject or to one of its claims', async () => {
      const scene = await start();
      const pod = issuer.token({ sub: 'system:serviceaccount:training:worker' });
      expect(await whoCalls(scene, pod, 'training')).toEqual([
        'sub:system:serviceaccount:training:worker',
        Role.WORK,
        'training',
      ]);
      const person = issuer.token({ sub: 'ann', groups: ['all', 'operators'] });
      expect(await whoCalls(scene, person, 'anything')).toEqual(['operator', Role.ADMIN, 'anything']);
      expect(await outcome(scene, pod, 'team-a')).toBe('PERMISSION_DENIED');
      expect(await outcome(scene, issuer.token({ sub: 'system:serviceaccount:other:worker' }))).toBe(
        'PERMISSION_DENIED',
      );
      expect(await outcome(scene, issuer.token({ sub: 'ann', groups: 'none' }))).toBe('PERMISSION_DENIED');
    });

    it('may have a subject of 512 characters, whose traces in the database are as they must be, and none that is longer', async () => {
      writeFileSync(mappingFile(), MAPPING.replace('sub: agent', 'sub: a*'));
      const scene = await start();
      const token = issuer.token({ sub: 'a'.repeat(512) });
      const { runs, rollouts, trajectories } = clientOf(scene, token);
      const { run } = await runs.createRun({ initialStatus: Status.RUNNING });
      const { stage } = await runs.getOrCreateStage({ runId: run!.id, kind: StageKind.TRAIN_STEP, number: 1n });
      await rollouts.createRollouts({ stageId: stage!.id, rollouts: [{ groupNumber: 0n, number: 0n }] });
      const claim = { stageId: stage!.id, workerId: 'w', leaseDuration: { seconds: 60n } };
      const { claims } = await rollouts.claimRollouts(claim);
      await trajectories.appendBatch({ entries: [{ trajectoryId: claims[0]!.trajectory!.id, writerId: 'w' }] });
      await requireIntact(clientOf(scene, issuer.token({ sub: 'zoe', groups: ['operators'] })));
      expect(await outcome(scene, issuer.token({ sub: 'a'.repeat(513) }))).toBe('UNAUTHENTICATED');
    });

    it('is accepted for 30 seconds after its end and before its begin, because clocks differ', async () => {
      const scene = await start();
      expect(await outcome(scene, issuer.token({ exp: inSeconds(-20) }))).toBe('ok');
      expect(await outcome(scene, issuer.token({ nbf: inSeconds(20) }))).toBe('ok');
    });

    it('ends its streams when it expires, with UNAUTHENTICATED', async () => {
      const scene = await start();
      const watching = await watch(scene, issuer.token({ exp: inSeconds(-27) }));
      await expect(watching.ended).rejects.toThrow('has expired');
    });

    const key = newSigningKey();
    const BAD = badTokens('https://issuer.example', key);
    describe.each(Object.keys(BAD))('that is %s', (kind) => {
      it('is refused, and the answer says why without repeating it', async () => {
        const [make, fault] = BAD[kind]!;
        const scene = await start({ jwtIssuer: 'https://issuer.example', jwtJwks: fileWith(key) });
        const session = await http2Session(scene.server.url);
        const token = make();
        for (let again = 0; again < 2; again += 1) {
          const call = new RawCall(session, '/anabranch.v1.TrajectoryService/GetTree', {
            authorization: `Bearer ${token}`,
          });
          // Bytes that no decoder accepts: a caller whose request was decoded gets another error.
          call.stream.end(Buffer.from([0, 0, 0, 0, 2, 0xff, 0xff]));
          const { status, reason, message, metadata } = await call.outcome;
          expect([status, reason, metadata.fault], message).toEqual([16, 'UNAUTHENTICATED', fault]);
          for (const part of token.split('.')) if (part !== '') expect(message).not.toContain(part);
        }
        expect(scene.log.filter((line) => line.includes(token))).toEqual([]);
        session.destroy();
      });
    });

    it('names nothing that the server fetches', async () => {
      const asked: string[] = [];
      const lure = http.createServer((request, response) => {
        asked.push(request.url ?? '');
        response.end(JSON.stringify({ keys: [stranger.jwk] }));
      });
      await new Promise<void>((resolve) => lure.listen(0, '127.0.0.1', resolve));
      const url = `http://127.0.0.1:${(lure.address() as AddressInfo).port}/`;
      const stranger = newSigningKey();
      const scene = await start({}, { unknownKeyMs: 0 });
      const links = { jku: url, x5u: url, iss: url };
      expect(await outcome(scene, issuer.token({}, stranger, links))).toBe('UNAUTHENTICATED');
      expect(await outcome(scene, issuer.token({}, issuer.keys[0], links))).toBe('ok');
      expect(asked).toEqual([]);
      lure.close();
    });

    it('is refused by a server that accepts API keys only', async () => {
      const server = await startTestServer({ engine, settings: { authenticated: true } });
      open.add(server);
      expect(await outcome({ server, log: [] }, issuer.token())).toBe('UNAUTHENTICATED');
    });
  });

  describe('N2: the keys of the issuer', () => {
    it('are found by discovery or at an address, over TLS of an authority and with a token', async () => {
      const { issuer: secure, ca } = await startSecureIssuer();
      const tokenFile = path.join(folder, 'token');
      writeFileSync(tokenFile, 'of-the-pod\n');
      const caFile = path.join(folder, 'issuer.crt');
      writeFileSync(caFile, ca);
      const flags = { jwtIssuer: secure.url, jwtCa: caFile, jwtTokenFile: tokenFile };
      expect(await outcome(await start(flags), secure.token())).toBe('ok');
      expect(await outcome(await start({ ...flags, jwtJwks: `${secure.url}/keys` }), secure.token())).toBe('ok');
      expect(secure.asked.map(({ path: asked }) => asked)).toEqual([
        '/.well-known/openid-configuration',
        '/keys',
        '/keys',
      ]);
      expect(new Set(secure.asked.map(({ authorization }) => authorization))).toEqual(new Set(['Bearer of-the-pod']));
      const { jwtCa: _ca, ...untrusted } = flags;
      const scene = await start(untrusted);
      expect(await outcome(scene, secure.token())).toBe('UNAUTHENTICATED');
      expect(scene.log.join()).toContain('could not be asked');
      await secure.stop();
    });

    it('are fetched again for a key that a token names, so that rotated ones are accepted at once', async () => {
      const scene = await start({}, { unknownKeyMs: 0 });
      expect(await outcome(scene, issuer.token())).toBe('ok');
      const next = newSigningKey('EdDSA');
      issuer.keys = [...issuer.keys, next];
      expect(await outcome(scene, issuer.token({}, next))).toBe('ok');
      expect(issuer.fetches).toBe(2);
    });

    it('are not fetched again within a minute, however many keys are named', async () => {
      const scene = await start();
      expect(await outcome(scene, issuer.token())).toBe('ok');
      const strangers = Array.from({ length: 20 }, () => newSigningKey());
      const outcomes = await Promise.all(strangers.map((key) => outcome(scene, issuer.token({}, key))));
      expect(new Set(outcomes)).toEqual(new Set(['UNAUTHENTICATED']));
      expect(issuer.fetches).toBe(1);
    });

    it('go on while the issuer hangs, also for tokens that were not seen before', async () => {
      const scene = await start({}, { unknownKeyMs: 0 });
      expect(await outcome(scene, issuer.token())).toBe('ok');
      issuer.answer = () => undefined;
      const waiting = Array.from({ length: 50 }, () => outcome(scene, issuer.token({}, newSigningKey())));
      await until(() => issuer.fetches === 2, 'the server asks for keys');
      for (let i = 0; i < 20; i += 1) expect(await outcome(scene, issuer.token({ jti: `${i}` }))).toBe('ok');
      issuer.answer = (_request, response) => void response.writeHead(503).end();
      await issuer.stop();
      expect(new Set(await Promise.all(waiting))).toEqual(new Set(['UNAUTHENTICATED']));
    });

    it('end a fetch that takes too long', async () => {
      issuer.answer = (_request, response) => void response.write('{');
      const scene = await start({}, { fetchMs: 100 });
      expect(await outcome(scene, issuer.token())).toBe('UNAUTHENTICATED');
      expect(scene.log.join()).toContain('did not answer within 100 ms');
    });

    const json = (value: unknown) => JSON.stringify(value);
    it.each<readonly [string, string, (response: http.ServerResponse) => void]>([
      ['10,000 keys', 'has 10000 keys', (response) => response.end(json({ keys: Array(10_000).fill({ kty: 'EC' }) }))],
      ['more than 1 MiB', 'sent more than', (response) => response.end(Buffer.alloc(2 * 1024 * 1024, ' '))],
      ['no JSON', 'is no JSON object', (response) => response.end('<html>')],
      ['JSON that is no set', 'is no set of keys', (response) => response.end(json({ keys: 'none' }))],
      [
        'no public key',
        'has no public key',
        (response) => response.end(json({ keys: [{ kty: 'oct', k: 'AAAA' }, 7] })),
      ],
      ['404', 'answered with the status 404', (response) => response.writeHead(404).end()],
      ['a redirect', 'status 302', (response) => response.writeHead(302, { location: '/keys2' }).end()],
      ['a cut connection', 'could not be asked', (response) => response.destroy()],
    ])('stay in use when the issuer answers with %s, and a warning says so', async (_what, warning, answer) => {
      const scene = await start({}, { renewMs: 20 });
      expect(await outcome(scene, issuer.token())).toBe('ok');
      issuer.answer = (_request, response) => answer(response);
      await until(() => scene.log.some((line) => line.includes(warning)), 'the server warns');
      expect(await outcome(scene, issuer.token({ jti: 'new' }))).toBe('ok');
      expect(scene.log.filter((line) => line.includes(issuer.keys[0]!.kid))).toEqual([]);
    });

    it('that are too old are accepted no more, nor what they have signed', async () => {
      const scene = await start({}, { trustMs: 300, renewMs: 50 });
      const token = issuer.token();
      // On a busy machine, keys may be too old until they are renewed.
      await expect.poll(() => outcome(scene, token), PATIENT).toBe('ok');
      issuer.answer = (_request, response) => void response.writeHead(503).end();
      await expect.poll(() => outcome(scene, token), PATIENT).toBe('UNAUTHENTICATED');
      issuer.answer = undefined;
      await expect.poll(() => outcome(scene, issuer.token({ jti: 'new' })), PATIENT).toBe('ok');
    });

    it('that the issuer withdraws end streams, and others stay', async () => {
      const [kept, withdrawn] = [newSigningKey(), newSigningKey()];
      issuer.keys = [kept, withdrawn];
      const scene = await start({}, { renewMs: 20 });
      const [other, gone] = [
        await watch(scene, issuer.token({}, kept)),
        await watch(scene, issuer.token({}, withdrawn)),
      ];
      issuer.keys = [kept];
      await expect(gone.ended).rejects.toSatisfy((error) => reasonOf(error) === 'UNAUTHENTICATED');
      expect(await outcome(scene, issuer.token({}, kept))).toBe('ok');
      expect(await isOpen(other)).toBe(true);
    });

    it('are not those of another issuer', async () => {
      issuer.named = 'https://other.example';
      const scene = await start();
      expect(await outcome(scene, issuer.token())).toBe('UNAUTHENTICATED');
      expect(scene.log.join()).toContain('is of another issuer than --jwt-issuer');
    });

    it('can be in a file, which is watched', async () => {
      const [first, second] = [newSigningKey(), newSigningKey()];
      const jwtJwks = fileWith(first);
      const scene = await start({ jwtJwks });
      const token = tokenOf(first, claimsOf(issuer.url));
      expect(await outcome(scene, token)).toBe('ok');
      fileWith(second);
      await until(() => scene.log.filter((line) => line.includes('uses the keys')).length === 2, 'the file is read');
      expect(await outcome(scene, tokenOf(second, claimsOf(issuer.url)))).toBe('ok');
      expect(await outcome(scene, token)).toBe('UNAUTHENTICATED');
      writeFileSync(jwtJwks, 'garbage');
      await until(() => scene.log.some((line) => line.includes('is no JSON object')), 'the server warns');
      expect(await outcome(scene, tokenOf(second, claimsOf(issuer.url)))).toBe('ok');
      expect(issuer.asked).toEqual([]);
    });

    it('in a file that has none let no server start', async () => {
      const jwtJwks = path.join(folder, 'garbage.json');
      writeFileSync(jwtJwks, '{}');
      await expect(start({ jwtJwks })).rejects.toThrow(/garbage\.json cannot be used: it is no set of keys/u);
    });
  });

  describe('N2: the mapping', () => {
    it('is watched: what it gives changes with the next call, and streams of changed principals end', async () => {
      const scene = await start();
      const token = issuer.token();
      const other = issuer.token({ sub: 'ann', groups: ['operators'] });
      expect([await whoCalls(scene, token), await outcome(scene, other)]).toEqual([AGENT, 'ok']);
      const [watching, unchanged] = [await watch(scene, token), await watch(scene, other)];
      writeFileSync(mappingFile(), MAPPING.replace('role: write', 'role: read'));
      await expect(watching.ended).rejects.toThrow('has changed meanwhile');
      expect(await whoCalls(scene, token)).toEqual(['sub:agent', Role.READ, 'team-a']);
      writeFileSync(mappingFile(), MAPPING.replace('sub: agent', 'sub: nobody'));
      await expect.poll(() => outcome(scene, token), PATIENT).toBe('PERMISSION_DENIED');
      expect(await isOpen(unchanged)).toBe(true);
    });

    const BAD: readonly (readonly [string, string, RegExp])[] = [
      ['no YAML', 'principals: [', /is no mapping/u],
      ['nothing', '', /the document is null/u],
      ['no role', 'principals: [{ sub: a }]', /principals\[0\]\.role is missing/u],
      ['an unknown role', 'principals: [{ sub: a, role: root }]', /principals\[0\]\.role is "root"/u],
      ['an unknown field', 'principals: [{ sub: a, role: read, subject: b }]', /principals\[0\] is .*subject/u],
      ['two subjects', 'principals: [{ sub: a, san: b, role: read }]', /exactly one of sub, san and claim/u],
      ['no subject', 'principals: [{ role: read }]', /exactly one of sub, san and claim/u],
      ['a claim without a value', 'principals: [{ claim: a, role: read }]', /claim and value together/u],
      ['a number as subject', 'principals: [{ sub: 7, role: read }]', /principals\[0\]\.sub is 7/u],
      ['a bad namespace', 'principals: [{ sub: a, role: read, namespaces: [A] }]', /namespaces\[0\] is "A"/u],
      ['a reserved name', 'principals: [{ sub: a, role: read, name: anonymous }]', /this name is reserved/u],
      ['an alias', 'x: &a [1]\nprincipals: *a', /is no mapping/u],
    ];

    it.each(BAD)('with %s lets no server start', async (_what, text, reason) => {
      writeFileSync(mappingFile(), text);
      const starting = start();
      await expect(starting).rejects.toThrow(StartError);
      await expect(starting).rejects.toThrow(reason);
    });

    it.each(BAD)('that is replaced by one with %s stays in use, with one warning', async (_what, text) => {
      const scene = await start();
      writeFileSync(mappingFile(), text);
      await until(() => scene.log.some((line) => line.includes('the mapping in use stays')), 'the server warns');
      expect(await outcome(scene, issuer.token())).toBe('ok');
    });
  });

  function fileWith(key: SigningKey): string {
    const file = path.join(folder, 'keys.json');
    writeFileSync(file, JSON.stringify({ keys: [key.jwk] }));
    return file;
  }
});
