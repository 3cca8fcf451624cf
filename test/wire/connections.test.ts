import { once } from 'node:events';
import net from 'node:net';
import { Code, ConnectError, createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema, RetryInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { Health, HealthCheckResponse_ServingStatus as Serving } from '../../gen/es/grpc/health/v1/health_pb.js';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { http2Session, RawCall, rawCall, until } from './raw.ts';
import { collect } from './story.ts';
import { connect, WIRES } from './wires.ts';

const CREATE = '/anabranch.v1.TrajectoryService/CreateTrajectory';

describe('A4: a server on which every connection has a call in progress', () => {
  let server: TestServer;
  let watch: RawCall;
  const RESERVE = 4;
  beforeAll(async () => {
    server = await startTestServer({
      flags: { maxConnections: '1' },
      portLimits: { reserveConnections: RESERVE },
    });
    watch = new RawCall(await http2Session(server.url), '/grpc.health.v1.Health/Watch');
    watch.stream.end(Buffer.alloc(5)); // an empty message
    await watch.messages(1);
  });
  afterAll(() => server.stop());

  it('answers health checks, by HTTP and by gRPC', async () => {
    const ask = async (path: string) => {
      const response = await fetch(server.url + path);
      return [response.status, response.headers.get('connection'), await response.text()];
    };
    for (const path of ['/healthz', '/livez', '/readyz'])
      await expect.poll(() => ask(path), { timeout: 5000 }).toEqual([200, 'close', 'ok']);
    const health = createClient(Health, createGrpcTransport({ baseUrl: server.url }));
    for (let i = 0; i < 2; i += 1) expect((await health.check({})).status).toBe(Serving.SERVING);
  });

  it.each(WIRES)('refuses calls by $name with UNAVAILABLE, a reason and a retry delay', async (wire) => {
    const { trajectories } = connect(wire, server.url);
    for (let i = 0; i < 2; i += 1) {
      const error = ConnectError.from(await trajectories.createTrajectory({}).catch((thrown: unknown) => thrown));
      expect(Code[error.code], String(error)).toBe('Unavailable');
      expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: 'TOO_MANY_CONNECTIONS' }]);
      expect(error.findDetails(RetryInfoSchema)).toHaveLength(1);
    }
    const streamed = await collect(trajectories.readSteps({ trajectoryId: 'x' })).catch((thrown: unknown) => thrown);
    expect(Code[ConnectError.from(streamed).code], String(streamed)).toBe('Unavailable');
  });

  it('refuses other requests with 503', async () => {
    for (const [path, init] of [
      ['/', {}],
      [CREATE, { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{}' }],
    ] as const) {
      const response = await fetch(`${server.url}${path}`, init);
      expect([response.status, response.headers.get('connection')]).toEqual([503, 'close']);
      expect(await response.json()).toMatchObject({ code: 'unavailable' });
    }
    const session = await http2Session(server.url);
    const closed = once(session, 'close');
    const refusal = await rawCall(session, CREATE, Buffer.alloc(5));
    expect(refusal).toMatchObject({ http: 200, status: 14, reason: 'TOO_MANY_CONNECTIONS', reset: 0 });
    await closed;
  });

  it('answers health checks although calls that never end fill the whole reserve', async () => {
    const WATCH = '/grpc.health.v1.Health/Watch';
    const sessions = await Promise.all(Array.from({ length: RESERVE }, () => http2Session(server.url)));
    for (const [i, session] of sessions.entries()) {
      const call = new RawCall(session, i % 2 === 0 ? WATCH : '/grpc.health.v1.Health/Check');
      if (i % 2 === 0) {
        call.stream.end(Buffer.alloc(5));
        await call.messages(1);
      } else call.stream.write(Buffer.alloc(4)); // never complete
    }
    await until(() => server.counts().requests === RESERVE + 1, 'the reserve is full');
    const response = await fetch(`${server.url}/healthz`);
    expect([response.status, await response.text()]).toEqual([200, 'ok']);
    const health = createClient(Health, createGrpcTransport({ baseUrl: server.url }));
    expect((await health.check({})).status).toBe(Serving.SERVING);
    for (const session of sessions) session.destroy();
    await until(() => server.counts().requests === 1, 'one call is left');
  });

  it('continues the calls in progress, and accepts all calls once one connection is idle', async () => {
    expect(watch.stream.closed).toBe(false);
    watch.stream.close();
    await watch.outcome;
    await until(() => server.counts().requests === 0, 'the call has ended');
    const { trajectories } = connect(WIRES[0]!, server.url);
    expect((await trajectories.createTrajectory({})).trajectory?.id).toBeDefined();
  });
});

it('A4: 1,000 idle connections lock no client out of a process that may open 1,024 files', async () => {
  await using database = await createMigratedDatabase('sqlite');
  await using server = await spawnServer({ database: database.url, openFiles: 1024 });
  const watch = new RawCall(await http2Session(server.url), '/grpc.health.v1.Health/Watch');
  watch.stream.end(Buffer.alloc(5));
  await watch.messages(1);

  const idle: net.Socket[] = [];
  for (let i = 0; i < 1000; i += 1) {
    const socket = net.connect(server.port, server.host);
    idle.push(socket.on('error', () => undefined).resume());
    socket.write('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0');
    await once(socket, 'connect');
  }
  await until(() => idle.filter(({ closed }) => closed).length >= 177, 'those over 824 are closed', 20_000);

  const response = await fetch(`${server.url}/healthz`);
  expect([response.status, await response.text()]).toEqual([200, 'ok']);
  const trajectories = createClient(TrajectoryService, createGrpcTransport({ baseUrl: server.url }));
  expect((await trajectories.createTrajectory({})).trajectory?.id).toBeDefined();
  expect(watch.stream.closed).toBe(false);
  expect(
    idle.findIndex(({ closed }) => !closed),
    'the oldest are closed',
  ).toBeGreaterThanOrEqual(177);
  expect(server.output().match(/too many connections/g)).toHaveLength(1);
  for (const socket of idle) socket.destroy();
  watch.stream.close();
});
