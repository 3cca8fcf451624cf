import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import type { IncomingHttpHeaders } from 'node:http2';
import { ConnectError, createClient } from '@connectrpc/connect';
import { createConnectTransport, createGrpcWebTransport } from '@connectrpc/connect-web';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { http2Session, RawCall, speak } from './raw.ts';
import { collect } from './story.ts';

const LISTED = 'https://app.example';
let server: TestServer;
beforeAll(async () => {
  const flags = { allowedHost: 'anabranch.example', allowedOrigin: `${LISTED},http://localhost:5173` };
  server = await startTestServer({ flags });
});
afterAll(() => server.stop());

const SERVICE = '/anabranch.v1.TrajectoryService';
const REQUESTS = [
  ['GET', '/healthz', ''],
  ['GET', '/', ''],
  ['GET', '/no/such/path', ''],
  ['GET', `/states/${'0'.repeat(64)}`, ''],
  ['POST', `${SERVICE}/CreateTrajectory`, 'application/json'],
  ['POST', `${SERVICE}/CreateTrajectory`, 'application/proto'],
  ['POST', `${SERVICE}/CreateTrajectory`, 'application/grpc'],
  ['POST', `${SERVICE}/CreateTrajectory`, 'application/grpc-web+proto'],
  ['POST', `${SERVICE}/ReadSteps`, 'application/connect+json'],
  ['POST', `${SERVICE}/NoSuch`, 'text/plain'],
  ['GET', `${SERVICE}/GetTrajectory?connect=v1&encoding=json&message=%7B%7D`, ''],
  ['POST', '/grpc.health.v1.Health/Check', 'application/json'],
  ['POST', '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo', 'application/grpc'],
  ['OPTIONS', `${SERVICE}/CreateTrajectory`, ''],
] as const;

describe('A7: a web page of an origin that is not listed', () => {
  it.each(REQUESTS)('cannot call anything by %s %s %s', async (method, path, type) => {
    const typed = type === '' ? '' : `Content-Type: ${type}\r\n`;
    const session = await http2Session(server.url);
    for (const [headers, status] of [
      [{ host: 'evil.example', origin: 'http://evil.example' }, 421],
      [{ host: 'localhost', origin: 'http://evil.example' }, 403],
      [{ host: 'localhost', origin: 'null' }, 403],
    ] as const) {
      const named = `Host: ${headers.host}\r\nOrigin: ${headers.origin}\r\n`;
      const said = await speak(server.port, `${method} ${path} HTTP/1.1\r\n${named}${typed}Connection: close\r\n\r\n`);
      expect(said).toMatch(new RegExp(`^HTTP/1\\.1 ${status} .*content-type: text/plain`, 'is'));
      const call = new RawCall(session, path, {
        ':method': method,
        ':authority': headers.host,
        'content-type': type,
        origin: headers.origin,
      });
      call.stream.end();
      const outcome = await call.outcome;
      expect([outcome.http, outcome.status, outcome.reason]).toEqual([status, undefined, undefined]);
    }
    session.destroy();
  });

  it('cannot delete anything through a host name that it points to this machine', async () => {
    const trajectoryId = randomUUID();
    const trajectories = createClient(TrajectoryService, createConnectTransport({ baseUrl: server.url }));
    await trajectories.createTrajectory({ trajectoryId });
    const body = JSON.stringify({ trajectoryId });
    const request = `Host: evil.example:${server.port}\r\nOrigin: http://evil.example:${server.port}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`;
    const said = await speak(server.port, `POST ${SERVICE}/DeleteTrajectory HTTP/1.1\r\n${request}`);
    expect(said).toMatch(/^HTTP\/1\.1 421 /);
    expect((await trajectories.getTrajectory({ trajectoryId })).trajectory?.id).toBe(trajectoryId);
  });

  it('reaches the server under a name in --allowed-host', async () => {
    const request = 'GET /healthz HTTP/1.1\r\nHost: anabranch.example\r\nConnection: close\r\n\r\n';
    expect(await speak(server.port, request)).toMatch(/^HTTP\/1\.1 200 /);
  });
});

describe('A7: a page of another site, of which the browser tells without an Origin', () => {
  const image = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'image' };
  const link = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'document' };
  const isPage = (path: string) => path === '/';

  it.each(REQUESTS.filter(([, path]) => !isPage(path)))(
    'cannot call anything by %s %s %s',
    async (method, path, type) => {
      const session = await http2Session(server.url);
      for (const said of [image, { ...image, 'sec-fetch-site': 'same-site' }, link]) {
        const lines = Object.entries({ ...said, host: 'localhost', ...(type === '' ? {} : { 'content-type': type }) });
        const head = lines.map(([name, value]) => `${name}: ${value}\r\n`).join('');
        const answer = await speak(server.port, `${method} ${path} HTTP/1.1\r\n${head}Connection: close\r\n\r\n`);
        expect(answer).toMatch(/^HTTP\/1\.1 403 .*content-type: text\/plain/is);
        const call = new RawCall(session, path, {
          ':method': method,
          ':authority': 'localhost',
          'content-type': type,
          ...said,
        });
        call.stream.end();
        const outcome = await call.outcome;
        expect([outcome.http, outcome.status, outcome.reason]).toEqual([403, undefined, undefined]);
      }
      session.destroy();
    },
  );

  it('can link to the page and to the reference of the API, which have no data', async () => {
    for (const path of ['/', '/runs/a', '/trees/a', '/docs', '/docs.txt']) {
      expect((await fetch(server.url + path, { headers: link })).status, path).toBe(200);
    }
  });
});

describe('A7: browsers neither guess the type of any answer, nor let pages of other origins embed it', () => {
  it.each(REQUESTS)('of %s %s %s', async (method, path, type) => {
    const typed = type === '' ? '' : `Content-Type: ${type}\r\n`;
    for (const [origin, policy] of [
      ['', 'same-origin'],
      ['Origin: null\r\n', 'same-origin'],
      [`Origin: ${LISTED}\r\n`, 'cross-origin'],
    ] as const) {
      const request = `${method} ${path} HTTP/1.1\r\nHost: localhost\r\n${origin}${typed}Content-Length: 0\r\n`;
      const [head = ''] = (await speak(server.port, `${request}Connection: close\r\n\r\n`)).split('\r\n\r\n');
      expect(head.match(/x-content-type-options: .*/gi)).toEqual(['x-content-type-options: nosniff']);
      expect(head.match(/cross-origin-resource-policy: .*/gi)).toEqual([`cross-origin-resource-policy: ${policy}`]);
    }
    const session = await http2Session(server.url);
    const stream = session.request({
      ':method': method,
      ':path': path,
      ...(type === '' ? {} : { 'content-type': type }),
    });
    stream.end();
    const [headers] = (await once(stream, 'response')) as [IncomingHttpHeaders];
    expect(headers).toMatchObject({
      'x-content-type-options': 'nosniff',
      'cross-origin-resource-policy': 'same-origin',
    });
    session.destroy();
  });

  it.each([
    ['an answer', 'application/grpc', 'GetServerInfo', 0],
    ['an error', 'application/grpc', 'NoSuch', 12],
  ])('of %s by plain gRPC', async (_, type, method, status) => {
    const session = await http2Session(server.url);
    const stream = session.request({
      ':method': 'POST',
      ':path': `/anabranch.v1.ServerService/${method}`,
      'content-type': type,
    });
    let told: IncomingHttpHeaders = {};
    stream.on('trailers', (trailers: IncomingHttpHeaders) => (told = trailers));
    stream.resume();
    stream.end(Buffer.alloc(5));
    const [headers] = (await once(stream, 'response')) as [IncomingHttpHeaders];
    await once(stream, 'close');
    expect({ ...headers, ...told }).toMatchObject({
      'grpc-status': `${status}`,
      'x-content-type-options': 'nosniff',
      'cross-origin-resource-policy': 'same-origin',
    });
    session.destroy();
  });
});

/** Response headers that a page may always read. */
const SAFE_HEADERS = [
  'cache-control',
  'content-language',
  'content-length',
  'content-type',
  'expires',
  'last-modified',
];

/**
 * A `fetch` like that of a page with this origin: it sends a preflight before the call, and exposes only what the page
 * may read.
 */
function fetchFrom(origin: string): typeof fetch {
  return async (input, init = {}) => {
    const headers = new Headers(init.headers);
    const asked = {
      origin,
      'access-control-request-method': init.method ?? 'GET',
      'access-control-request-headers': [...headers.keys()].sort().join(','),
    };
    const leave = await fetch(input, { method: 'OPTIONS', headers: asked });
    const listOf = (name: string) => (leave.headers.get(name) ?? '').toLowerCase().split(/, */);
    const allowed = leave.ok && leave.headers.get('access-control-allow-origin') === origin;
    const methods = listOf('access-control-allow-methods');
    const names = listOf('access-control-allow-headers');
    if (!allowed || !methods.includes(asked['access-control-request-method'].toLowerCase()))
      throw new TypeError('Failed to fetch');
    if ([...headers.keys()].some((name) => !names.includes(name))) throw new TypeError('Failed to fetch');

    headers.set('origin', origin);
    const response = await fetch(input, { ...init, headers });
    if (response.headers.get('access-control-allow-origin') !== origin) throw new TypeError('Failed to fetch');
    const exposed = (response.headers.get('access-control-expose-headers') ?? '').split(/, */);
    const shown = [...response.headers].filter(([name]) => [...SAFE_HEADERS, ...exposed].includes(name));
    return new Response(response.body, { status: response.status, headers: shown });
  };
}

describe.each([
  ['Connect in JSON', createConnectTransport, { useBinaryFormat: false }],
  ['Connect in binary', createConnectTransport, { useBinaryFormat: true }],
  ['Connect by GET', createConnectTransport, { useHttpGet: true }],
  ['gRPC-Web', createGrpcWebTransport, {}],
] as const)('A7: connect-web, by %s', (_name, createTransport, options) => {
  const clientFrom = (origin: string) =>
    createClient(
      TrajectoryService,
      createTransport({ baseUrl: server.url, fetch: fetchFrom(origin), defaultTimeoutMs: 20_000, ...options }),
    );

  it.each([LISTED, 'http://localhost:5173'])('works from a page of the listed origin %s', async (origin) => {
    const trajectories = clientFrom(origin);
    const trajectoryId = randomUUID();
    await trajectories.createTrajectory({ trajectoryId });
    for (const stepNumber of [0n, 1n]) await trajectories.appendStep({ trajectoryId, step: { stepNumber, reward: 1 } });
    expect((await trajectories.getTrajectory({ trajectoryId })).trajectory).toMatchObject({ rewardSum: 2 });
    const read = await collect(trajectories.readSteps({ trajectoryId }));
    expect(read.flatMap(({ steps }) => steps.map(({ stepNumber }) => stepNumber))).toEqual([0n, 1n]);
  });

  it('gets errors with their reason', async () => {
    const trajectories = clientFrom(LISTED);
    const trajectoryId = randomUUID();
    for (const call of [
      () => trajectories.getTrajectory({ trajectoryId }),
      () => collect(trajectories.readSteps({ trajectoryId })),
    ]) {
      const error = ConnectError.from(await call().catch((thrown: unknown) => thrown));
      expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: 'TRAJECTORY_NOT_FOUND' }]);
    }
  });

  it('fails from a page of any other origin', async () => {
    await expect(clientFrom('https://evil.example').createTrajectory({})).rejects.toThrow(ConnectError);
  });
});

it('A7: a page of a listed origin can read the status of a gRPC-Web call to an unknown RPC', async () => {
  const response = await fetchFrom(LISTED)(`${server.url}${SERVICE}/NoSuch`, {
    method: 'POST',
    headers: { 'content-type': 'application/grpc-web+proto', 'x-grpc-web': '1' },
  });
  expect(response.headers.get('grpc-status')).toBe('12');
  expect(response.headers.get('grpc-message')).toContain('NoSuch');
  expect(response.headers.get('grpc-status-details-bin')).not.toBeNull();
});
