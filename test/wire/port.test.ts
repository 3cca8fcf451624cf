import { once } from 'node:events';
import http2 from 'node:http2';
import net from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { ListenError } from '../../src/listen/address.ts';
import type { Intake } from '../../src/listen/intake.ts';
import { type ListenOptions, Port, type PortLimits } from '../../src/listen/port.ts';
import { inEnvelope, rawCall, speak, until } from './raw.ts';

let open: Port | undefined;
afterEach(() => open?.drain(0));

async function listen(
  limits: Partial<PortLimits> = {},
  onError: (error: unknown) => void = () => undefined,
  options: Partial<ListenOptions> = {},
) {
  const port = new Port({
    host: '127.0.0.1',
    port: 0,
    maxMessageBytes: 1000,
    maxStreams: 10,
    onError,
    limits,
    ...options,
    handler: (request, response) => {
      if (request.url === '/throw') throw new Error('planted');
      if (request.url === '/never') return;
      response.end(`you came by ${request.httpVersion}`);
    },
    streamHandlerOf: ({ url: path }) => {
      if (path === '/stream/throw')
        return () => {
          throw new Error('planted');
        };
      return path === '/stream' ? answerWithBody : undefined;
    },
  });
  open = port;
  return { port, number: (await port.listen()).port };
}

function answerWithBody(stream: http2.ServerHttp2Stream, intake: Intake): void {
  void intake.onlyMessage().then((body) => {
    stream.respond({ ':status': 200 });
    stream.end(body);
  });
}

async function connect(number: number): Promise<http2.ClientHttp2Session> {
  const session = http2.connect(`http://127.0.0.1:${number}`);
  session.on('error', () => undefined);
  await once(session, 'connect');
  return session;
}

describe('one port for HTTP/1.1 and HTTP/2', () => {
  it('distinguishes HTTP/2 from HTTP/1.1', async () => {
    const { number } = await listen();
    const session = await connect(number);
    expect((await rawCall(session, '/', new Uint8Array())).body.toString()).toBe('you came by 2.0');
    session.close();
    expect(await speak(number, 'GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n')).toContain('you came by 1.1');
  });

  it('a handler that throws fails its own request only, and the error is logged', async () => {
    const told: unknown[] = [];
    const { number } = await listen({}, (error) => told.push(error));
    const session = await connect(number);
    expect((await rawCall(session, '/throw', new Uint8Array())).http).toBe(500);
    expect((await rawCall(session, '/', new Uint8Array())).http).toBe(200);
    expect(told).toMatchObject([{ message: 'planted' }]);
    session.close();
  });

  it('a handler of streams gets the calls that are its own, and fails its own call only', async () => {
    const told: unknown[] = [];
    const { port, number } = await listen({}, (error) => told.push(error));
    const session = await connect(number);
    const body = inEnvelope(Buffer.from('whole'));
    const [stream, request, thrown] = await Promise.all(
      ['/stream', '/', '/stream/throw'].map((path) => rawCall(session, path, body)),
    );
    expect(stream?.body).toEqual(body);
    expect(request?.body.toString()).toBe('you came by 2.0');
    expect([thrown?.http, thrown?.reset]).toEqual([0, http2.constants.NGHTTP2_INTERNAL_ERROR]);
    expect(told).toMatchObject([{ message: 'planted' }]);
    session.close();
    await until(() => Object.values(port.counts()).every((count) => count === 0), 'nothing is open');
  });

  it.each([
    ['a foreign name', { ':authority': 'evil.example' }, 421],
    ['an origin that is not listed', { origin: 'https://evil.example' }, 403],
    ['a page of another site', { 'sec-fetch-site': 'cross-site' }, 403],
    ['an authority that is no host', { ':authority': 'a:b:c' }, 400],
    ['too many headers', { long: 'x'.repeat(20_000) }, 431],
  ])('a call to a handler of streams with %s is refused like a request', async (_what, headers, status) => {
    const { number } = await listen({}, undefined, { allowedHosts: [] });
    const session = await connect(number);
    expect((await rawCall(session, '/stream', Buffer.alloc(0), headers)).http).toBe(status);
    session.destroy();
  });

  it('a connection that does not identify its protocol is closed', async () => {
    const { port, number } = await listen({ handshakeMs: 100 });
    const silent = net.connect(number, '127.0.0.1');
    const half = net.connect(number, '127.0.0.1');
    half.write('PR');
    const slow = net.connect(number, '127.0.0.1');
    slow.write('GET / HTTP/1.1\r\nHo');
    await until(() => port.counts().sockets === 3, 'all are open');
    await Promise.all([silent, half, slow].map((socket) => once(socket.resume(), 'close')));
    await until(() => port.counts().sockets === 0, 'all are closed');
  });

  it('A2: a client that vanished is detected by a ping and disconnected, and its calls end', async () => {
    const { port, number } = await listen({ pingEveryMs: 50, pingTimeoutMs: 100 });
    // A client that opens a call and then answers nothing, as if its machine had lost power.
    const socket = net.connect(number, '127.0.0.1');
    const preface = 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0';
    socket.write(Buffer.from(preface, 'latin1'));
    await until(() => port.counts().sessions === 1, 'the session is open');
    socket.resume();
    await once(socket, 'close');
    await until(() => port.counts().sessions === 0 && port.counts().sockets === 0, 'it is closed');
  });

  it('a client that answers pings stays connected', async () => {
    const { port, number } = await listen({ pingEveryMs: 20, pingTimeoutMs: 2000 });
    const session = await connect(number);
    let pings = 0;
    session.on('ping', () => (pings += 1));
    await until(() => pings >= 5, 'it was pinged five times');
    expect(port.counts().sessions).toBe(1);
    session.close();
  });

  it('an idle connection gets a GOAWAY after a while, one with a call does not', async () => {
    const { port, number } = await listen({ idleMs: 300 });
    const [idle, busy] = [await connect(number), await connect(number)];
    const closed = once(idle, 'close');
    const call = busy.request({ ':path': '/never', ':method': 'POST' });
    call.on('error', () => undefined);
    await until(() => port.counts().requests === 1, 'the call has arrived');
    await closed;
    expect(busy.closed).toBe(false);
    call.close();
    await once(busy, 'close');
  });

  it('an old connection gets a GOAWAY, and its call may end', async () => {
    const { number } = await listen({ maxAgeMs: 50 });
    const session = await connect(number);
    const call = session.request({ ':path': '/never', ':method': 'POST' });
    call.on('error', () => undefined);
    await once(session, 'goaway');
    expect(call.destroyed).toBe(false);
    call.close();
    await once(session, 'close');
  });

  it('reports why it cannot listen', async () => {
    const { number } = await listen();
    const second = new Port({
      host: '127.0.0.1',
      port: number,
      maxMessageBytes: 1,
      maxStreams: 1,
      onError: () => undefined,
      handler: () => undefined,
    });
    await expect(second.listen()).rejects.toThrow(ListenError);
    await expect(second.listen()).rejects.toThrow(/port is in use/);
  });
});
