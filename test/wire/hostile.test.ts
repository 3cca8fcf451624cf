import { randomUUID } from 'node:crypto';
import type { ClientHttp2Session } from 'node:http2';
import { gzipSync } from 'node:zlib';
import { fromBinary } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  AppendStepsRequestSchema,
  AppendStepsResponseSchema,
  CreateTrajectoryRequestSchema,
  GetTrajectoryRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { openTlsTunnel } from '../support/tls-tunnel.ts';
import { envelope, http2Session, inEnvelope, openEnvelopes, RawCall, rawCall, speak, until } from './raw.ts';

const SERVICE = '/anabranch.v1.TrajectoryService';
const CREATE = `${SERVICE}/CreateTrajectory`;
const GET = `${SERVICE}/GetTrajectory`;
const APPEND = `${SERVICE}/AppendSteps`;
const EMPTY = inEnvelope(new Uint8Array());
const PROTO = { 'content-type': 'application/proto' };
const mebibyteOf = (...bytes: number[]) => Buffer.alloc(LIMITS.messageBytes, Buffer.from(bytes));
const MIB_OF_EMPTIES = inEnvelope(mebibyteOf(0x12, 0));

describe.each(['without TLS', 'over TLS'])('hostile requests %s', (kind) => {
  let server: TestServer;
  /** Where clients reach it. */
  let door: { readonly url: string; readonly port: number };
  let close = async () => {};
  let session: ClientHttp2Session;
  const faults: unknown[] = [];
  const onFault = (fault: unknown) => faults.push(fault);

  beforeAll(async () => {
    const authority = createAuthority();
    const tls = kind === 'over TLS' ? { ...writeIssued(authority.issue()) } : {};
    server = await startTestServer({ flags: { allowedHost: 'my_service.default.svc,a-b.example.org', ...tls } });
    door = server;
    if (kind === 'over TLS') {
      const tunnel = await openTlsTunnel(server.port, authority.cert);
      door = tunnel;
      close = tunnel.close;
    }
    process.on('unhandledRejection', onFault);
  });
  afterAll(async () => {
    process.off('unhandledRejection', onFault);
    await close();
    await server.stop();
  });
  beforeEach(async () => {
    session = await http2Session(door.url);
  });

  /** After every case the server works, and keeps nothing of the case. */
  afterEach(async () => {
    const other = await http2Session(door.url);
    expect((await rawCall(other, CREATE, EMPTY)).status).toBe(0);
    other.destroy();
    session.destroy();
    await until(
      () => Object.values(server.counts()).every((count) => count === 0),
      `nothing is open: ${JSON.stringify(server.counts())}`,
    );
    expect(faults).toEqual([]);
  });

  const open = (trajectoryId: string) => envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'w' } });
  const stepFrame = (number: bigint, text = 'x') =>
    envelope(AppendStepsRequestSchema, { steps: [{ stepNumber: number, observations: [{ content: { text } }] }] });

  async function newTrajectory(): Promise<string> {
    const trajectoryId = randomUUID();
    const made = await rawCall(session, CREATE, envelope(CreateTrajectoryRequestSchema, { trajectoryId }));
    expect(made.status).toBe(0);
    return trajectoryId;
  }

  function lastAck(body: Buffer): bigint | undefined {
    const answers = openEnvelopes(body).map((bytes) => fromBinary(AppendStepsResponseSchema, bytes));
    return answers.findLast(({ ack }) => ack !== undefined)?.ack?.nextStepNumber;
  }

  const NO_AUTHORITIES = [
    'foo:99999',
    '[::1',
    'a%00b',
    'foo|bar',
    'foo bar',
    'user@host',
    'a/b',
    'a?b',
    'a#b',
    'a\\b',
    '[zz]',
    ':80',
    '999.999.999.999',
    '1.2.3.0x100',
    'a'.repeat(300),
  ];

  describe('T12: an invalid authority', () => {
    it.each(NO_AUTHORITIES)('%s is answered 400 over HTTP/2, by every protocol', async (authority) => {
      for (const type of ['application/grpc', 'application/grpc-web', 'application/json', 'application/connect+json']) {
        const outcome = await rawCall(session, GET, EMPTY, { ':authority': authority, 'content-type': type });
        // HTTP/2 itself refuses invalid header values by a reset, before our code sees them.
        if (outcome.http === 0) expect(outcome.reset, type).not.toBe(0);
        else expect(outcome.http, type).toBe(400);
        expect(outcome.status, type).toBeUndefined();
      }
    });

    it.each([...NO_AUTHORITIES, ''])('"%s" is answered 400 over HTTP/1.1, on any path', async (host) => {
      // Probes need no Host.
      for (const path of host === '' ? [GET, '/'] : [GET, '/healthz', '/']) {
        const said = await speak(
          door.port,
          `POST ${path} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}`,
        );
        expect(said).toMatch(/^HTTP\/1\.1 400 /);
      }
    });

    it('a missing authority is answered 400, also in HTTP/1.0', async () => {
      for (const version of ['1.0', '1.1']) {
        expect(await speak(door.port, `GET ${GET} HTTP/${version}\r\nConnection: close\r\n\r\n`)).toMatch(
          /^HTTP\/1\.1 400 /,
        );
      }
    });

    it.each(['localhost', '127.0.0.1:50051', '[::1]:50051', 'my_service.default.svc', 'a-b.example.org:1'])(
      '%s is valid',
      async (authority) => {
        expect((await rawCall(session, CREATE, EMPTY, { ':authority': authority })).status).toBe(0);
      },
    );
  });

  describe('T12: unusual requests', () => {
    it.each(['/', '//', '//[', '/x', `${SERVICE}/`, `${SERVICE}/NoSuch`, '/%00', '/..', `${GET}/`, '/a'.repeat(3000)])(
      'path %s is UNIMPLEMENTED',
      async (path) => {
        expect(await rawCall(session, path, EMPTY)).toMatchObject({ status: 12, reason: 'UNIMPLEMENTED' });
        const json = await rawCall(session, path, Buffer.from('{}'), { 'content-type': 'application/json' });
        expect(json.http).toBe(404);
        expect(JSON.parse(json.body.toString())).toMatchObject({
          code: 'unimplemented',
          details: [{ type: 'google.rpc.ErrorInfo' }],
        });
      },
    );

    it('a query is not part of the path', async () => {
      expect((await rawCall(session, `${CREATE}?a=[::1&b=%`, EMPTY)).status).toBe(0);
    });

    it('an unsupported content type is answered with the supported ones', async () => {
      for (const type of ['application/x-www-form-urlencoded', 'text/html', 'application/connect+json', '']) {
        const outcome = await rawCall(session, CREATE, Buffer.from('{}'), { 'content-type': type });
        expect(outcome.http, type).toBe(415);
        expect(JSON.parse(outcome.body.toString())).toMatchObject({
          code: 'invalid_argument',
          message: expect.stringContaining('application/json'),
        });
      }
    });

    it.each(['99999999H', '99999999S', '99999999M', '50000000S'])('a deadline of %s has no effect', async (timeout) => {
      expect(await rawCall(session, CREATE, EMPTY, { 'grpc-timeout': timeout })).toMatchObject({ status: 0 });
    });

    it('a Connect deadline of 9999999999 ms has no effect', async () => {
      const headers = { 'content-type': 'application/json', 'connect-timeout-ms': '9999999999' };
      expect(await rawCall(session, CREATE, Buffer.from('{}'), headers)).toMatchObject({ http: 200 });
    });

    it.each(['-1S', '1', 'S', '1.5S', '999999999S', 'soon'])('a deadline of %s is refused', async (timeout) => {
      expect(await rawCall(session, CREATE, EMPTY, { 'grpc-timeout': timeout })).toMatchObject({
        status: 3,
        reason: 'INVALID_REQUEST',
      });
    });

    it('a deadline that has passed already is DEADLINE_EXCEEDED, and nothing is created', async () => {
      const trajectoryId = randomUUID();
      const request = envelope(CreateTrajectoryRequestSchema, { trajectoryId });
      expect(await rawCall(session, CREATE, request, { 'grpc-timeout': '0m' })).toMatchObject({
        status: 4,
        reason: 'DEADLINE_EXCEEDED',
      });
      const found = await rawCall(session, GET, envelope(GetTrajectoryRequestSchema, { trajectoryId }));
      expect(found).toMatchObject({ status: 5, reason: 'TRAJECTORY_NOT_FOUND' });
    });

    it('headers above the limit fail the request, and the server stays up', async () => {
      const large = await rawCall(session, CREATE, EMPTY, { 'x-large': 'x'.repeat(40_000) });
      expect(large).toMatchObject({ http: 431 });
      expect(await rawCall(session, CREATE, EMPTY), 'on the same connection').toMatchObject({ status: 0 });
      const said = await speak(
        door.port,
        `GET /healthz HTTP/1.1\r\nHost: localhost\r\nx-large: ${'x'.repeat(40_000)}\r\n\r\n`,
      );
      expect(said).toMatch(/^HTTP\/1\.1 431 /);
    });

    it('2,000 headers fail the request, and the server stays up', async () => {
      const many = Object.fromEntries(Array.from({ length: 2000 }, (_, i) => [`x-${i}`, '1']));
      const outcome = await rawCall(session, CREATE, EMPTY, many).catch((error: unknown) => error);
      expect(outcome).not.toMatchObject({ status: 0 });
    });
  });

  describe('T11, T13, T14: bodies', () => {
    it('a body that cannot be parsed is an error of the caller, not INTERNAL', async () => {
      for (const bytes of [[0xff], [0x0a, 0x05, 0x61], [0x0b], [0x08], new Array(200).fill(0x0b)]) {
        const outcome = await rawCall(session, GET, inEnvelope(Uint8Array.from(bytes)));
        expect(outcome).toMatchObject({ status: 3, reason: 'INVALID_REQUEST' });
      }
    });

    it('FM5: unknown fields of JSON are refused by name', async () => {
      const body = '{"trajectoryId": "00000000-0000-4000-8000-000000000000", "stepNumbr": 3}';
      const outcome = await rawCall(session, `${SERVICE}/GetStep`, Buffer.from(body), {
        'content-type': 'application/json',
      });
      expect(outcome.http).toBe(400);
      const error = JSON.parse(outcome.body.toString()) as {
        code: string;
        message: string;
        details: { debug: object }[];
      };
      expect(error).toMatchObject({ code: 'invalid_argument', message: expect.stringContaining('stepNumbr') });
      expect(error.details.map(({ debug }) => debug)).toMatchObject([
        { reason: 'INVALID_REQUEST', domain: 'anabranch.v1' },
        { fieldViolations: [{ field: 'stepNumbr' }] },
        { requestId: expect.any(String) },
      ]);
    });

    it('JSON with excessive nesting is refused', async () => {
      const deep = `{"labels": ${'['.repeat(50_000)}${']'.repeat(50_000)}}`;
      const outcome = await rawCall(session, CREATE, Buffer.from(deep), { 'content-type': 'application/json' });
      expect(outcome.http).toBe(400);
    });

    it('FM5: zero values are present in JSON', async () => {
      const outcome = await rawCall(session, CREATE, Buffer.from('{}'), { 'content-type': 'application/json' });
      expect(JSON.parse(outcome.body.toString())).toMatchObject({
        trajectory: { nextStepNumber: '0', rewardSum: 0, labels: {} },
      });
    });

    it('an envelope that claims 4 GiB is refused before its bytes arrive, 10 times concurrently', async () => {
      const claim = Buffer.from([0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]);
      const calls = Array.from({ length: 10 }, () => new RawCall(session, APPEND));
      for (const { stream } of calls) stream.write(claim);
      for (const { outcome } of calls) expect(await outcome).toMatchObject({ status: 8, reason: 'MESSAGE_TOO_LARGE' });
    });

    it('a message of 1 MiB is accepted, one byte more is refused', async () => {
      const withText = (length: number) =>
        envelope(CreateTrajectoryRequestSchema, {
          metadataJson: `"${'x'.repeat(500_000)}"`,
          root: { observations: [{ content: { text: 'x'.repeat(length) } }] },
        });
      // Every length in it takes three bytes, whatever its value.
      const exactly = (bytes: number) => withText(500_000 + bytes - (withText(500_000).length - 5));
      const full = exactly(LIMITS.messageBytes);
      expect(full.length - 5).toBe(LIMITS.messageBytes);
      expect((await rawCall(session, CREATE, full)).status).toBe(0);
      const over = exactly(LIMITS.messageBytes + 1);
      expect(over.length - 5).toBe(LIMITS.messageBytes + 1);
      expect(await rawCall(session, CREATE, over)).toMatchObject({ status: 8, reason: 'MESSAGE_TOO_LARGE' });
    });

    it('100,000 frames of one byte take less than 2 s of work', async () => {
      const trajectoryId = await newTrajectory();
      const call = new RawCall(session, APPEND);
      call.stream.write(open(trajectoryId));
      await call.messages(1);
      const frame = stepFrame(0n, 'x'.repeat(100_000));
      const before = process.cpuUsage();
      // Each write is a DATA frame of its own; the figure includes the work of the client.
      for (let i = 0; i < frame.length; i += 1) {
        if (!call.stream.write(frame.subarray(i, i + 1)))
          await new Promise((resolve) => call.stream.once('drain', resolve));
      }
      call.stream.end();
      const outcome = await call.outcome;
      const { user, system } = process.cpuUsage(before);
      expect(outcome.status).toBe(0);
      expect(lastAck(outcome.body)).toBe(1n);
      expect((user + system) / 1e6).toBeLessThan(10);
    });

    it('a message that expands 1000 : 1 is refused with bounded memory, 8 concurrently', async () => {
      const bomb = inEnvelope(gzipSync(Buffer.alloc(100 * LIMITS.messageBytes)), 1);
      const before = process.memoryUsage().rss;
      const calls = Array.from({ length: 8 }, () => rawCall(session, CREATE, bomb, { 'grpc-encoding': 'gzip' }));
      for (const outcome of await Promise.all(calls))
        expect(outcome).toMatchObject({ status: 8, reason: 'MESSAGE_TOO_LARGE' });
      expect(process.memoryUsage().rss - before).toBeLessThan(256 * 1024 * 1024);
    });

    it('a small message may be compressed', async () => {
      const request = inEnvelope(gzipSync(envelope(CreateTrajectoryRequestSchema, { name: 'n' }).subarray(5)), 1);
      expect((await rawCall(session, CREATE, request, { 'grpc-encoding': 'gzip' })).status).toBe(0);
    });

    it('a body that is compressed without a header, by an unknown method, or corrupt, is an error of the caller', async () => {
      const squeezed = inEnvelope(gzipSync(Buffer.alloc(10)), 1);
      expect(await rawCall(session, CREATE, squeezed)).toMatchObject({ status: 3, reason: 'INVALID_REQUEST' });
      expect(await rawCall(session, CREATE, squeezed, { 'grpc-encoding': 'lzma' })).toMatchObject({
        status: 12,
        reason: 'UNIMPLEMENTED',
      });
      const broken = inEnvelope(Buffer.from('not gzip at all'), 1);
      expect(await rawCall(session, CREATE, broken, { 'grpc-encoding': 'gzip' })).toMatchObject({
        status: 3,
        reason: 'INVALID_REQUEST',
      });
    });

    it.each([
      ['empty steps', APPEND, MIB_OF_EMPTIES, {}],
      ['numbers with the field number of steps', APPEND, inEnvelope(mebibyteOf(0x10, 0)), {}],
      ['empty steps, compressed', APPEND, inEnvelope(gzipSync(mebibyteOf(0x12, 0)), 1), { 'grpc-encoding': 'gzip' }],
      ['unknown fields', APPEND, inEnvelope(mebibyteOf(0x7a, 0)), {}],
      ['empty points', '/anabranch.v1.RunService/LogMetrics', inEnvelope(mebibyteOf(0x12, 0)), {}],
      ['empty rollouts', '/anabranch.v1.RolloutService/CreateRollouts', inEnvelope(mebibyteOf(0x12, 0)), {}],
      ['empty tasks', '/anabranch.v1.RolloutService/UpsertTasks', inEnvelope(mebibyteOf(0x0a, 0)), {}],
      ['empty tasks by Connect', '/anabranch.v1.RolloutService/UpsertTasks', mebibyteOf(0x0a, 0), PROTO],
      [
        'empty tasks by Connect, compressed',
        '/anabranch.v1.RolloutService/UpsertTasks',
        gzipSync(mebibyteOf(0x0a, 0)),
        { ...PROTO, 'content-encoding': 'gzip' },
      ],
      [
        'empty tasks in JSON',
        '/anabranch.v1.RolloutService/UpsertTasks',
        Buffer.from(`{"tasks":[${'{},'.repeat(340_000)}{}]}`),
        { 'content-type': 'application/json' },
      ],
    ])('1 MiB of %s is refused with less than 3 s of work', async (_what, path, body, headers) => {
      const before = process.cpuUsage();
      const outcome = await rawCall(session, path, body, headers);
      const { user, system } = process.cpuUsage(before);
      if (outcome.status === undefined) {
        const error = JSON.parse(outcome.body.toString()) as {
          code: string;
          message: string;
          details: { debug: unknown }[];
        };
        expect(error).toMatchObject({
          code: 'resource_exhausted',
          details: [{ debug: { reason: 'MESSAGE_TOO_LARGE' } }, { type: 'google.rpc.RequestInfo' }],
        });
        expect(error.message).toContain(`more than ${LIMITS.messageValues} values`);
      } else {
        expect(outcome).toMatchObject({ status: 8, reason: 'MESSAGE_TOO_LARGE' });
        expect(outcome.message).toContain(`more than ${LIMITS.messageValues} values`);
      }
      expect((user + system) / 1e6).toBeLessThan(1);
    });

    it('W3: steps received before a message with too many values are acked before the refusal', async () => {
      const call = new RawCall(session, APPEND);
      call.stream.end(Buffer.concat([open(await newTrajectory()), stepFrame(0n), MIB_OF_EMPTIES, stepFrame(1n)]));
      const outcome = await call.outcome;
      expect(outcome).toMatchObject({ status: 8, reason: 'MESSAGE_TOO_LARGE' });
      expect(lastAck(outcome.body)).toBe(1n);
    });

    it('as many empty steps as fit into a message are one batch of duplicates, with less than 3 s of work', async () => {
      const body = Buffer.concat([
        open(await newTrajectory()),
        inEnvelope(mebibyteOf(0x12, 0).subarray(0, 2 * LIMITS.messageValues)),
      ]);
      const before = process.cpuUsage();
      const outcome = await rawCall(session, APPEND, body);
      const { user, system } = process.cpuUsage(before);
      expect(outcome.status).toBe(0);
      expect(lastAck(outcome.body)).toBe(1n);
      expect((user + system) / 1e6).toBeLessThan(3);
    });
  });

  describe('T15: streams that break off', () => {
    it('300 streams that are reset at once leave no handler or memory behind', async () => {
      const trajectoryId = await newTrajectory();
      for (let i = 0; i < 300 && !session.destroyed; i += 1) {
        const { stream } = new RawCall(session, APPEND);
        stream.write(open(trajectoryId));
        stream.close(8);
        if (i % 50 === 0) await new Promise((resolve) => setImmediate(resolve));
      }
      session.destroy();
      await until(() => server.counts().handlers === 0, 'all handlers have ended');
    });

    it('a client that continues to send after a refusal is stopped', async () => {
      const call = new RawCall(session, APPEND);
      call.stream.write(stepFrame(0n));
      const chatter = setInterval(() => call.stream.writable && call.stream.write(stepFrame(1n, 'x'.repeat(1000))), 1);
      const outcome = await call.outcome;
      clearInterval(chatter);
      expect(outcome).toMatchObject({ status: 3, reason: 'INVALID_REQUEST' });
    });
  });

  describe('T11: bytes that are not HTTP', () => {
    it.each([
      ['bytes that are not HTTP', 'hello\r\n\r\n'],
      ['an incomplete preface of HTTP/2', 'PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n'],
      ['TLS', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03'],
      ['an endless header', `GET / HTTP/1.1\r\nHost: ${'a'.repeat(100_000)}`],
      ['an HTTP/2 frame with a wrong length', `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n${'\xff'.repeat(100)}`],
      ['an upgrade', 'GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\r\n'],
      ['CONNECT', 'CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n'],
      [
        'conflicting lengths',
        `POST ${CREATE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
      ],
    ])('%s closes its own connection only', async (_what, bytes) => {
      await speak(door.port, Buffer.from(bytes, 'latin1'), 300, 300);
    });

    it('a preface that arrives byte by byte is recognised as HTTP/2', async () => {
      const settings = '\0\0\0\x04\0\0\0\0\0';
      const said = await speakSlowly(`PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n${settings}`);
      expect(said[3]).toBe(4); // a SETTINGS frame
    });

    async function speakSlowly(text: string): Promise<Buffer> {
      const { connect } = await import('node:net');
      const socket = connect({ host: '127.0.0.1', port: door.port, noDelay: true });
      const answer = new Promise<Buffer>((resolve) => socket.once('data', resolve));
      for (const byte of Buffer.from(text, 'latin1')) {
        socket.write(Buffer.from([byte]));
        await new Promise((resolve) => setImmediate(resolve));
      }
      const first = await answer;
      socket.destroy();
      return first;
    }
  });
});
