import { randomUUID } from 'node:crypto';
import type { ClientHttp2Session } from 'node:http2';
import net from 'node:net';
import { gzipSync } from 'node:zlib';
import { fromBinary } from '@bufbuild/protobuf';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PutStateRequestSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import {
  AppendStepsRequestSchema,
  AppendStepsResponseSchema,
  CreateTrajectoryRequestSchema,
  GetTrajectoryRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { Health, HealthCheckResponse_ServingStatus as Serving } from '../../gen/es/grpc/health/v1/health_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import type { PortLimits } from '../../src/listen/port.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { envelope, http2Session, inEnvelope, openEnvelopes, RawCall, rawCall, until } from '../wire/raw.ts';
import { connect, WIRES } from '../wire/wires.ts';

const SERVICE = '/anabranch.v1.TrajectoryService';
const CREATE = `${SERVICE}/CreateTrajectory`;
const GET = `${SERVICE}/GetTrajectory`;
const APPEND = `${SERVICE}/AppendSteps`;
const PUT_STATE = '/anabranch.v1.StateService/PutState';
const EMPTY = inEnvelope(new Uint8Array());
const MIB = 1024 * 1024;

let server: TestServer;
let session: ClientHttp2Session;

async function start(portLimits: Partial<PortLimits> = {}): Promise<void> {
  server = await startTestServer({ portLimits });
  session = await http2Session(server.url);
}

async function stop(): Promise<void> {
  session.destroy();
  await until(
    () => Object.values(server.counts()).every((count) => count === 0),
    `nothing is open: ${JSON.stringify(server.counts())}`,
  );
  await server.stop();
}

/**
 * A request whose trajectory id fills the largest allowed message. The server rejects it, but only once it is complete.
 */
const largest = () => {
  const sized = (bytes: number) => envelope(GetTrajectoryRequestSchema, { trajectoryId: 'x'.repeat(bytes) });
  const body = sized(LIMITS.messageBytes - 4);
  expect(body.length - 5).toBe(LIMITS.messageBytes);
  return body;
};

describe('MS2: bytes of unfinished messages', () => {
  beforeAll(() => start());
  afterAll(stop);

  it('are limited to 16 MiB per connection; other calls on it are served, and each message can be completed', async () => {
    const body = largest();
    const calls = Array.from({ length: 40 }, () => new RawCall(session, GET));
    for (const { stream } of calls) stream.write(body.subarray(0, -1));
    let most = 0;
    await until(() => {
      most = Math.max(most, server.counts().unfinishedBytes);
      return most > 15 * MIB;
    }, 'the connection is at its bound');
    // Unread bytes fill the windows of the streams, which together exceed the window of the connection: other streams
    // must work all the same.
    for (let i = 0; i < 20; i += 1) {
      expect(await rawCall(session, CREATE, EMPTY)).toMatchObject({ status: 0 });
      most = Math.max(most, server.counts().unfinishedBytes);
    }
    const other = await http2Session(server.url);
    expect(await rawCall(other, GET, body), 'a large message on another connection').toMatchObject({ status: 3 });
    other.destroy();
    for (const { stream } of calls) stream.end(body.subarray(-1));
    for (const { outcome } of calls) expect(await outcome).toMatchObject({ status: 3, reason: 'INVALID_REQUEST' });
    expect(most).toBeLessThanOrEqual(16 * MIB);
  });
});

describe('MS2: bytes of unfinished messages of all connections', () => {
  beforeAll(() => start({ unfinishedBytes: 4 * MIB }));
  afterAll(stop);

  it('are limited as well', async () => {
    const body = largest();
    const sessions = await Promise.all(Array.from({ length: 8 }, () => http2Session(server.url)));
    const calls = sessions.map((each) => new RawCall(each, GET));
    for (const { stream } of calls) stream.write(body.subarray(0, -1));
    await until(() => server.counts().unfinishedBytes > 3 * MIB, 'the server has reached its limit');
    expect(await rawCall(session, CREATE, EMPTY)).toMatchObject({ status: 0 });
    expect(server.counts().unfinishedBytes).toBeLessThanOrEqual(4 * MIB);
    for (const { stream } of calls) stream.end(body.subarray(-1));
    for (const { outcome } of calls) expect(await outcome).toMatchObject({ status: 3, reason: 'INVALID_REQUEST' });
    for (const each of sessions) each.destroy();
  });
});

describe('MS2: at the limit for all connections, small messages do not wait', () => {
  const PART = 300_000;
  const PARTS = 4;
  const FULL = PARTS * PART + LIMITS.messageBytes + 5;
  const body = largest();
  let sessions: ClientHttp2Session[];
  let large: RawCall[];

  /** Four messages use all the room except that for one whole message, which the fifth uses up to its last byte. */
  beforeAll(async () => {
    await start({ unfinishedBytes: FULL, messageMs: 120_000 });
    sessions = await Promise.all(Array.from({ length: PARTS + 1 }, () => http2Session(server.url)));
    large = sessions.map((each) => new RawCall(each, GET));
    for (const { stream } of large.slice(1)) stream.write(body.subarray(0, PART));
    await until(() => server.counts().unfinishedBytes === PARTS * PART, 'four messages have partly arrived');
    large[0]!.stream.write(body.subarray(0, -1));
    await until(() => server.counts().unfinishedBytes === FULL - 1, 'the fifth has arrived except for its last byte');
  });
  afterAll(async () => {
    expect(server.counts().unfinishedBytes, 'the large messages still wait').toBe(FULL - 1);
    for (const [i, { stream }] of large.entries()) stream.end(body.subarray(i === 0 ? -1 : PART));
    for (const { outcome } of large) expect(await outcome).toMatchObject({ status: 3, reason: 'INVALID_REQUEST' });
    for (const each of [...sessions, session]) each.destroy();
    await until(() => server.counts().requests === 0, 'no call is in progress');
    expect(server.counts()).toMatchObject({ unfinishedBytes: 0, slots: 0 });
    await server.stop();
  });

  const small = { metadataJson: JSON.stringify('m'.repeat(300)) };

  it.each(WIRES)('$name', async (wire) => {
    const { trajectory } = await connect(wire, server.url).trajectories.createTrajectory(small);
    expect(trajectory?.id).toBeDefined();
  });

  it('a health check', async () => {
    const health = createClient(Health, createGrpcTransport({ baseUrl: server.url }));
    expect((await health.check({ service: '' })).status).toBe(Serving.SERVING);
  });

  it('a request that arrives byte by byte', async () => {
    const call = new RawCall(session, CREATE);
    for (const byte of envelope(CreateTrajectoryRequestSchema, small)) await written(call, Buffer.from([byte]));
    call.stream.end();
    expect(await call.outcome).toMatchObject({ status: 0 });
  });

  it('messages of a stream that arrive in two pieces', async () => {
    const trajectoryId = randomUUID();
    await rawCall(session, CREATE, envelope(CreateTrajectoryRequestSchema, { trajectoryId }));
    const call = new RawCall(session, APPEND);
    for (const message of [
      envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'w' } }),
      envelope(AppendStepsRequestSchema, { steps: [{ stepNumber: 0n }] }),
    ]) {
      await written(call, message.subarray(0, 7));
      await written(call, message.subarray(7));
    }
    call.stream.end();
    expect(await call.outcome).toMatchObject({ status: 0 });
  });

  /** Sends a piece in a frame of its own. */
  const written = ({ stream }: RawCall, piece: Buffer) =>
    new Promise<void>((resolve, reject) => stream.write(piece, (error) => (error ? reject(error) : resolve())));
});

describe.concurrent('MS2: a message that is not complete in time', () => {
  beforeAll(() => start({ messageMs: 2_000, lingerMs: 50 }));
  afterAll(async () => {
    await until(() => server.counts().requests === 0, 'all requests are closed, though no client has ended its own');
    await stop();
  });

  const TIMEOUT = { status: 4, reason: 'MESSAGE_TIMEOUT' };
  const half = (body: Buffer) => body.subarray(0, body.length / 2);
  const request = envelope(GetTrajectoryRequestSchema, { trajectoryId: randomUUID() });
  const squeezed = gzipSync(request.subarray(5));

  it.each([
    ['gRPC', half(request), {}],
    ['gRPC, all of the message but not the end of the request', request, {}],
    ['gRPC, a large message', half(largest()), {}],
    ['gRPC, compressed', half(inEnvelope(squeezed, 1)), { 'grpc-encoding': 'gzip' }],
  ])('ends its call: %s', async (_way, body, headers) => {
    const call = new RawCall(session, GET, headers);
    call.stream.write(body);
    expect(await call.outcome).toMatchObject({ ...TIMEOUT, message: expect.stringContaining('2 s after its first') });
  });

  it('ends its call: gRPC-Web', async () => {
    const call = new RawCall(session, GET, { 'content-type': 'application/grpc-web+proto' });
    call.stream.write(half(request));
    const { http, body } = await call.outcome;
    expect(http).toBe(200);
    expect(body.toString('latin1')).toMatch(/grpc-status: 4\r\n/);
  });

  it.each([
    ['binary', 'application/proto', {}, half(request.subarray(5))],
    ['compressed', 'application/proto', { 'content-encoding': 'gzip' }, half(squeezed)],
    ['JSON', 'application/json', {}, Buffer.from('{"trajectoryId": "')],
  ])('ends its call: Connect, %s, over HTTP/2', async (_way, type, headers, body) => {
    const call = new RawCall(session, GET, { 'content-type': type, ...headers });
    call.stream.write(body);
    const outcome = await call.outcome;
    expect(outcome.http).toBe(504);
    expect(JSON.parse(outcome.body.toString())).toMatchObject({
      code: 'deadline_exceeded',
      details: [{ debug: { reason: 'MESSAGE_TIMEOUT' } }, { type: 'google.rpc.RequestInfo' }],
    });
  });

  it('ends its call, and then its connection: JSON over HTTP/1.1', async () => {
    const socket = net.connect(server.port, '127.0.0.1');
    socket.write(
      `POST ${GET} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"traj`,
    );
    let said = '';
    for await (const piece of socket) said += String(piece);
    expect(said).toMatch(/^HTTP\/1\.1 504 /);
    expect(said).toContain('MESSAGE_TIMEOUT');
  });

  it.each([
    ['gRPC', {}],
    ['gRPC by Connect', { 'grpc-encoding': 'gzip' }],
  ])('ends its stream, after steps received before it are acked: %s', async (_way, headers) => {
    const trajectoryId = randomUUID();
    await rawCall(session, CREATE, envelope(CreateTrajectoryRequestSchema, { trajectoryId }));
    const step = (stepNumber: bigint) => envelope(AppendStepsRequestSchema, { steps: [{ stepNumber }] });
    const call = new RawCall(session, APPEND, headers);
    call.stream.write(
      Buffer.concat([
        envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'w' } }),
        step(0n),
        half(step(1n)),
      ]),
    );
    const outcome = await call.outcome;
    expect(outcome).toMatchObject(TIMEOUT);
    const acks = openEnvelopes(outcome.body).map((bytes) => fromBinary(AppendStepsResponseSchema, bytes).ack);
    expect(acks.at(-1)?.nextStepNumber).toBe(1n);
  });

  it('ends its stream: a state uploaded by Connect', async () => {
    const call = new RawCall(session, PUT_STATE, { 'content-type': 'application/connect+proto' });
    call.stream.write(half(envelope(PutStateRequestSchema, { chunk: Buffer.alloc(100) })));
    const { http, body } = await call.outcome;
    expect(http).toBe(200);
    expect(body.toString()).toContain('MESSAGE_TIMEOUT');
  });

  it('does not end a stream that is idle between messages', async () => {
    const trajectoryId = randomUUID();
    await rawCall(session, CREATE, envelope(CreateTrajectoryRequestSchema, { trajectoryId }));
    const idle = new RawCall(session, APPEND);
    idle.stream.write(envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'w' } }));
    await idle.messages(1);
    const late = new RawCall(session, GET);
    late.stream.write(half(request));
    expect(await late.outcome, 'one that began after it').toMatchObject(TIMEOUT);
    idle.stream.end(envelope(AppendStepsRequestSchema, { steps: [{ stepNumber: 0n }] }));
    expect(await idle.outcome).toMatchObject({ status: 0 });
  });
});
