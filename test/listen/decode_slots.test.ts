import { once } from 'node:events';
import http2, { type ClientHttp2Session, type ClientHttp2Stream, type OutgoingHttpHeaders } from 'node:http2';
import net from 'node:net';
import { text } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { HttpRequest } from '../../src/listen/http.ts';
import { Port } from '../../src/listen/port.ts';
import { inEnvelope, until } from '../wire/raw.ts';

const MESSAGE_BYTES = 1 << 20;
const LARGE = Buffer.alloc(900_000);
const CONNECT = { 'content-type': 'application/proto' };
const CONNECT_GZIP = { 'content-type': 'application/proto', 'content-encoding': 'gzip' };
const GRPC = { 'content-type': 'application/grpc' };
const { NGHTTP2_NO_ERROR, NGHTTP2_CANCEL } = http2.constants;

let port: Port;
let number: number;
let session: ClientHttp2Session;
/** Paths of the requests whose messages were read, and functions that hand over and answer each. */
let read: string[];
let decoded: Map<string, () => void>;

/** A handler that reads the messages of a request one by one. The test decides when each is handed over. */
async function handle(request: HttpRequest, intake: { handOver(): void }, answer: () => void): Promise<void> {
  const path = String(request.url);
  const dealWithMessage = async () => {
    read.push(path);
    await new Promise<void>((resolve) => decoded.set(path, resolve));
    intake.handOver();
  };
  try {
    const enveloped = request.headers['content-type'] === 'application/grpc';
    for await (const _ of request) if (enveloped) await dealWithMessage();
    if (!enveloped) await dealWithMessage();
    answer();
  } catch {
    // The request was cancelled.
  }
}

beforeEach(async () => {
  read = [];
  decoded = new Map();
  port = new Port({
    host: '127.0.0.1',
    port: 0,
    maxMessageBytes: MESSAGE_BYTES,
    maxStreams: 100,
    onError: (error) => {
      throw error;
    },
    handler: (request, response, intake) => {
      if (String(request.url).startsWith('/one')) intake.expectOne();
      if (String(request.url).startsWith('/answers')) (response as http2.Http2ServerResponse).write('an answer');
      void handle(request, intake, () => response.end('answer'));
    },
  });
  ({ port: number } = await port.listen());
  session = connect();
});

afterEach(async () => {
  session.destroy();
  await until(() => Object.values(port.counts()).every((count) => count === 0), 'nothing is left');
  await port.drain(0);
});

function connect(settings: http2.Settings = {}): ClientHttp2Session {
  const connected = http2.connect(`http://127.0.0.1:${number}`, { settings });
  connected.on('error', () => undefined);
  return connected;
}

function open(path: string, headers: OutgoingHttpHeaders, on = session): ClientHttp2Stream {
  const stream = on.request({ ':method': 'POST', ':path': path, ...headers });
  stream.on('error', () => undefined); // a reset is expected in these tests
  return stream;
}

function send(path: string, headers: OutgoingHttpHeaders, body: Uint8Array, on = session): ClientHttp2Stream {
  return open(path, headers, on).end(body);
}

const isRead = (path: string) => until(() => read.includes(path), `${path} is read`);
const slots = (count: number) => until(() => port.counts().slots === count, `there are ${count} slots`);

describe('MS1: a request that is cancelled releases its slot', () => {
  it.each([
    ['Connect', '/one', CONNECT, LARGE],
    ['Connect, compressed', '/one', CONNECT_GZIP, Buffer.alloc(150)],
    ['gRPC', '/one', GRPC, inEnvelope(LARGE)],
    ['gRPC, compressed', '/one', GRPC, inEnvelope(Buffer.alloc(150), 1)],
  ])('%s: while it waits in the queue, and while it holds its slot', async (_way, path, headers, body) => {
    await leaveWhileWaiting((name) => send(`${path}/${name}`, headers, body));
    expect(read).toEqual([`${path}/first`, `${path}/last`]);
  });

  it.each(['/stream', '/answers'])(
    '%s: also when neither its messages nor its answers are read to the end',
    async (path) => {
      const deaf = connect({ initialWindowSize: 0 });
      const message = inEnvelope(Buffer.alloc(150), 1);
      await leaveWhileWaiting((name) => {
        const stream = open(`${path}/${name}`, GRPC, deaf);
        stream.write(Buffer.concat([message, message, Buffer.alloc(200_000)]));
        return stream;
      });
      expect(read).toEqual([`${path}/first`, `${path}/last`]);
      deaf.destroy();
    },
  );

  /** Thirty requests wait behind the first. All leave, the waiting ones first. Then the last message is read. */
  async function leaveWhileWaiting(begin: (name: string) => ClientHttp2Stream): Promise<void> {
    const first = begin('first');
    await until(() => read.length === 1, 'the first is read');
    const waiting = Array.from({ length: 30 }, (_, i) => begin(String(i)));
    await slots(31);
    await until(() => waiting.every(({ writableLength }) => writableLength === 0), 'all is sent');
    for (const [i, stream] of waiting.entries()) stream.close(i % 2 === 0 ? NGHTTP2_CANCEL : NGHTTP2_NO_ERROR);
    await slots(1);
    first.close(NGHTTP2_CANCEL);
    await slots(0);
    const last = begin('last');
    await until(() => read.length === 2, 'the last is read');
    last.close(NGHTTP2_CANCEL);
  }

  it('HTTP/1.1: when its connection is closed', async () => {
    const post = (path: string) => {
      const socket = net.connect(number, '127.0.0.1');
      socket.write(`POST ${path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/proto\r\nContent-Encoding: gzip\r\n`);
      socket.write('Content-Length: 3\r\n\r\nabc');
      return socket;
    };
    const first = post('/one/first');
    await isRead('/one/first');
    const second = post('/one/second');
    await slots(2);
    second.destroy();
    await slots(1);
    first.destroy();
    await slots(0);
    const last = post('/one/last');
    await isRead('/one/last');
    last.destroy();
  });

  it('a closed connection releases all its slots', async () => {
    const other = connect();
    for (let i = 0; i < 20; i += 1) send(`/one/${i}`, CONNECT_GZIP, Buffer.from('abc'), other);
    await slots(20);
    other.destroy();
    await slots(0);
    const last = send('/one/last', CONNECT_GZIP, Buffer.from('abc'));
    await isRead('/one/last');
    last.close();
  });
});

describe('MS1: a slot lasts until its message reaches the handler', () => {
  it.each([
    ['Connect', '/one', CONNECT, LARGE],
    ['gRPC', '/one', GRPC, inEnvelope(LARGE)],
    ['a stream of gRPC', '/stream', GRPC, inEnvelope(LARGE)],
  ])('%s: the slot ends then, even if nobody reads the answer', async (_way, path, headers, body) => {
    const deaf = connect({ initialWindowSize: 0 });
    send(`${path}/first`, headers, body, deaf);
    await isRead(`${path}/first`);
    const second = send(`${path}/second`, headers, body);
    await slots(2);
    expect(read).toEqual([`${path}/first`]);
    decoded.get(`${path}/first`)?.();
    await isRead(`${path}/second`);
    expect(port.counts()).toMatchObject({ slots: 1, requests: 2 });
    decoded.get(`${path}/second`)?.();
    expect(await text(second)).toBe('answer');
    deaf.destroy();
  });

  it('small messages need no slot', async () => {
    const first = send('/one/first', CONNECT_GZIP, Buffer.from('abc'));
    await isRead('/one/first');
    const small = send('/stream/small', GRPC, Buffer.concat([inEnvelope(Buffer.alloc(60_000)), inEnvelope(LARGE)]));
    await isRead('/stream/small');
    decoded.get('/stream/small')?.();
    await slots(2);
    expect(read).toEqual(['/one/first', '/stream/small']);
    first.close();
    small.close();
    await Promise.all([once(first, 'close'), once(small, 'close')]);
  });
});
