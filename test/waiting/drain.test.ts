import { randomUUID } from 'node:crypto';
import http from 'node:http';
import net from 'node:net';
import { Code, ConnectError, createClient } from '@connectrpc/connect';
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { describe, expect, it } from 'vitest';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema, RetryInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { Health, HealthCheckResponse_ServingStatus as Serving } from '../../gen/es/grpc/health/v1/health_pb.js';
import { ServerReflection } from '../../gen/es/grpc/reflection/v1/reflection_pb.js';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { AppendCall } from '../wire/append-call.ts';
import { http2Session, RawCall, until } from '../wire/raw.ts';

/** Each client has a connection of its own, like clients in other processes. */
function connect(server: TestServer) {
  const transport = createGrpcTransport({ baseUrl: server.url, sessionManager: new Http2SessionManager(server.url) });
  return {
    trajectories: createClient(TrajectoryService, transport),
    health: createClient(Health, transport),
    reflection: createClient(ServerReflection, transport),
  };
}

function expectDraining(error: unknown): void {
  const { code, findDetails } = ConnectError.from(error);
  const details = findDetails.bind(error);
  expect(Code[code], String(error)).toBe('Unavailable');
  expect(details(ErrorInfoSchema)).toMatchObject([{ reason: 'SERVER_DRAINING' }]);
  expect(details(RetryInfoSchema)).toHaveLength(1);
}

async function refused(answers: AsyncIterator<unknown>): Promise<unknown> {
  for (;;) {
    try {
      if ((await answers.next()).done === true) throw new Error('the stream ended OK');
    } catch (error) {
      return error;
    }
  }
}

describe.each(ENGINES)('A2: draining, on %s', (engine) => {
  it('open appends commit and ack the steps they received, all streams end SERVER_DRAINING, and nothing remains open', async () => {
    const server = await startTestServer({ engine });
    const { trajectories, health, reflection } = connect(server);
    const trajectoryId = randomUUID();
    await trajectories.createTrajectory({ trajectoryId });
    const { call } = await AppendCall.open(trajectories, { trajectoryId, writerId: 'w' });
    const followed = trajectories.readSteps({ trajectoryId, follow: true })[Symbol.asyncIterator]();
    expect((await followed.next()).value).toMatchObject({ caughtUp: true });
    const watched = health.watch({})[Symbol.asyncIterator]();
    expect((await watched.next()).value).toMatchObject({ status: Serving.SERVING });
    const asked = Promise.withResolvers<void>();
    const reflected = reflection
      .serverReflectionInfo(
        (async function* () {
          yield { messageRequest: { case: 'listServices' as const, value: '' } };
          await asked.promise;
        })(),
      )
      [Symbol.asyncIterator]();
    await reflected.next();

    for (let i = 0n; i < 50n; i += 1n) call.send({ steps: [{ stepNumber: i }] });
    await call.acked(1n);
    const begun = performance.now();
    const drained = server.drain();
    let acked = 0n;
    const error = await (async () => {
      try {
        for (;;) acked = (await call.next())?.ack?.nextStepNumber ?? acked;
      } catch (thrown) {
        return thrown;
      }
    })();
    expectDraining(error);
    expectDraining(await refused(followed));
    expect((await watched.next()).value).toMatchObject({ status: Serving.NOT_SERVING });
    expectDraining(await refused(watched));
    expectDraining(await refused(reflected));
    asked.resolve();
    await drained;
    expect(performance.now() - begun).toBeLessThan(5_000);
    const open = Object.entries(server.counts()).filter(([, count]) => count > 0);
    expect(open).toEqual([]);

    const again = await startTestServer({ engine, database: server.database });
    const { trajectory } = await connect(again).trajectories.getTrajectory({ trajectoryId });
    expect(trajectory!.nextStepNumber, 'acked steps are stored').toBeGreaterThanOrEqual(acked);
    await again.stop();
    await server.stop();
  });
});

describe('A2: draining', () => {
  it('is idempotent, and accepts no new connections', async () => {
    await using server = await startTestServer();
    const first = server.drain();
    const second = server.drain();
    await Promise.all([first, second]);
    await expect(fetch(`${server.url}/healthz`)).rejects.toThrow();
  });

  it('a call in progress is answered, and its HTTP/1.1 connection closed after it', async () => {
    await using server = await startTestServer();
    const agent = new http.Agent({ keepAlive: true });
    const body = '{"name": "slow"}';
    const request = http.request(`${server.url}/anabranch.v1.TrajectoryService/CreateTrajectory`, {
      method: 'POST',
      agent,
      headers: { 'content-type': 'application/json', 'content-length': body.length },
    });
    request.write(body.slice(0, 5));
    await until(() => server.counts().requests === 1, 'the request has begun');
    const drained = server.drain();
    request.end(body.slice(5));
    const response = await new Promise<http.IncomingMessage>((resolve) => request.once('response', resolve));
    expect(response.statusCode).toBe(200);
    response.resume();
    await drained;
    agent.destroy();
  });

  it('GET /healthz returns 503 on a connection that was open before', async () => {
    await using server = await startTestServer();
    const socket = net.connect(server.port, '127.0.0.1');
    await until(() => server.counts().sockets === 1, 'the connection is open');
    const drained = server.drain();
    socket.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n');
    const answer = await new Promise<string>((resolve) => socket.once('data', (piece) => resolve(piece.toString())));
    expect(answer).toMatch(/^HTTP\/1\.1 503 .*\r\n\r\ndraining$/s);
    await drained;
  });

  it('a client that keeps its connection open is not waited for once it has no calls', async () => {
    await using server = await startTestServer();
    const idle = net.connect(server.port, '127.0.0.1');
    const session = await http2Session(server.url);
    await until(() => server.counts().sockets === 2, 'both have arrived');
    const begun = performance.now();
    await server.drain();
    expect(performance.now() - begun).toBeLessThan(5_000);
    expect(server.counts().sockets).toBe(0);
    idle.destroy();
    session.destroy();
  });

  it('a write stream that has sent nothing ends at once', async () => {
    await using server = await startTestServer();
    const session = await http2Session(server.url);
    const silent = new RawCall(session, '/anabranch.v1.TrajectoryService/AppendSteps');
    await until(() => server.counts().handlers === 1, 'the handler waits');
    await server.drain();
    expect(await silent.outcome).toMatchObject({ status: 14, reason: 'SERVER_DRAINING' });
    session.destroy();
  });

  it('a call that does not end is cancelled after drainSeconds', async () => {
    await using server = await startTestServer({ flags: { drainSeconds: '1' } });
    const socket = net.connect(server.port, '127.0.0.1');
    socket.write('POST /anabranch.v1.TrajectoryService/CreateTrajectory HTTP/1.1\r\nHost: localhost\r\n');
    socket.write('Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{');
    await until(() => server.counts().requests === 1, 'the request has begun');
    const begun = performance.now();
    await server.drain();
    expect(performance.now() - begun).toBeGreaterThan(900);
    expect(performance.now() - begun).toBeLessThan(6_000);
    expect(server.counts()).toMatchObject({ sockets: 0, requests: 0 });
    socket.destroy();
  });
});
