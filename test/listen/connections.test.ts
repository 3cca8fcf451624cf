import { EventEmitter, once } from 'node:events';
import type http2 from 'node:http2';
import net from 'node:net';
import { setImmediate } from 'node:timers/promises';
import fc from 'fast-check';
import { afterEach, describe, expect, it } from 'vitest';
import { type Connection, Connections, type Crowding } from '../../src/listen/connections.ts';
import type { HttpRequest, HttpResponse } from '../../src/listen/http.ts';
import { Port, type PortLimits } from '../../src/listen/port.ts';
import { http2Session, rawCall, speak, until } from '../wire/raw.ts';

let open: Port | undefined;
afterEach(() => open?.drain(0));

const GET = 'GET / HTTP/1.1\r\nHost: a\r\n\r\n';

async function listen(limits: Partial<PortLimits>) {
  const warnings: Crowding[] = [];
  const endings: (() => void)[] = [];
  const port = new Port({
    host: '127.0.0.1',
    port: 0,
    maxMessageBytes: 1000,
    maxStreams: 10,
    onError: (error) => {
      throw error;
    },
    limits,
    whenFull: {
      isHealthCheck: ({ url }: HttpRequest) => url === '/health' || url === '/health/watch',
      refuse: (_, response: HttpResponse, isOfCrowd) => {
        response.statusCode = 503;
        response.end(isOfCrowd ? 'crowded' : 'full');
      },
      warn: (crowding) => warnings.push(crowding),
    },
    handler: ({ url }, response, intake) => {
      if (url === '/known') intake.isOf('somebody', true);
      if (url === '/call' || url === '/health/watch') endings.push(() => response.end('ended'));
      else response.end('served');
    },
  });
  open = port;
  const { port: number } = await port.listen();
  const url = `http://127.0.0.1:${number}`;

  /** Connects, and lets the server, which runs on the same event loop, accept the connection. */
  async function peer(): Promise<Peer> {
    const connected = new Peer(net.connect(number, '127.0.0.1'));
    await once(connected.socket, 'connect');
    for (let i = 0; i < 3; i += 1) await setImmediate();
    return connected;
  }

  /** A connection with a call in progress, and a function that ends the call. */
  async function busyPeer(path = '/call'): Promise<{ peer: Peer; end: () => void }> {
    const busy = await peer();
    busy.socket.write(GET.replace('/', path));
    const calls = endings.length + 1;
    await until(() => endings.length === calls, 'the call is in progress');
    return { peer: busy, end: endings.at(-1)! };
  }

  const settled = () => until(() => port.counts().requests === 0, 'no call is in progress');
  return { port, number, url, warnings, peer, busyPeer, settled };
}

/** A raw TCP connection, and the bytes that it received. */
class Peer {
  readonly socket: net.Socket;
  readonly closed: Promise<unknown>;
  received = '';

  constructor(socket: net.Socket) {
    this.socket = socket;
    socket.on('error', () => undefined);
    socket.on('data', (piece: Buffer) => (this.received += piece.toString('latin1')));
    this.closed = new Promise((resolve) => socket.once('close', resolve));
  }

  async get(path = '/'): Promise<void> {
    this.socket.write(GET.replace('/', path));
    await until(() => this.received.includes('\r\n\r\n'), 'an answer has arrived');
  }
}

describe('A4: at the bound on connections', () => {
  it('a new connection closes the connection that has been idle longest, whichever protocol that one speaks', async () => {
    const { port, url, peer, settled } = await listen({ maxConnections: 3 });
    const silent = await peer();
    const session: http2.ClientHttp2Session = await http2Session(url);
    const goaway = once(session, 'goaway');
    await until(() => port.counts().sessions === 1, 'the session is open');
    const usedLast = await peer();
    await rawCall(session, '/', new Uint8Array());
    await settled();
    await usedLast.get();
    await settled();

    const first = await peer();
    await silent.closed;
    expect([session.closed, usedLast.socket.closed]).toEqual([false, false]);
    const second = await peer();
    await goaway;
    await until(() => session.destroyed, 'the session is closed');
    expect(usedLast.socket.closed).toBe(false);
    await peer();
    await usedLast.closed;
    expect([first.socket.closed, second.socket.closed]).toEqual([false, false]);
    expect(port.counts()).toMatchObject({ sockets: 3, sessions: 0, requests: 0 });
  });

  it('a connection that is used again counts as idle from then on', async () => {
    const { peer, settled } = await listen({ maxConnections: 2 });
    const older = await peer();
    const newer = await peer();
    await older.get();
    await settled();
    await peer();
    await newer.closed;
    expect(older.socket.closed).toBe(false);
  });

  it('a connection with a call in progress is not closed: the next idle one is closed instead', async () => {
    const { url, port, peer, busyPeer } = await listen({ maxConnections: 3 });
    const busy = await busyPeer();
    const session = await http2Session(url);
    const call = rawCall(session, '/call', new Uint8Array());
    await until(() => port.counts().requests === 2, 'both calls are in progress');
    for (let i = 0; i < 3; i += 1) {
      const idle = await peer();
      await peer();
      await idle.closed;
    }
    busy.end();
    await until(() => busy.peer.received.includes('ended'), 'the call is answered');
    expect([session.closed, port.counts().sessions], 'the other call is under way').toEqual([false, 1]);
    await port.drain(0);
    expect((await call).http, 'it was not answered').toBe(0);
  });
});

/** A socket that is not connected. */
class DeafSocket extends EventEmitter {
  destroyed = false;

  destroy(): void {
    this.destroyed = true;
    this.emit('close');
  }
}

it('A4: with random connections and random use, the connection that has been idle longest is closed', () => {
  const action = fc.record({ what: fc.constantFrom('accept', 'begin', 'end', 'hang up'), which: fc.nat() });
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 6 }), fc.array(action, { maxLength: 200 }), (size, actions) => {
      const limits = { maxConnections: size, reserveConnections: 0, warnEveryMs: 60_000 };
      const connections = new Connections(limits, () => undefined);
      const open: { socket: DeafSocket; connection: Connection; calls: number }[] = [];
      const idle: (typeof open)[number][] = [];
      const remove = (list: typeof open, item: (typeof open)[number]) => list.splice(list.indexOf(item), 1);
      for (const { what, which } of actions) {
        const peer = open[which % open.length];
        if (what === 'accept') {
          const first = open.length < size ? undefined : idle[0];
          const socket = new DeafSocket();
          const connection = connections.accept(socket as unknown as net.Socket);
          expect(connection === undefined).toBe(open.length === size && first === undefined);
          if (first !== undefined) {
            expect(first.socket.destroyed).toBe(true);
            remove(open, first);
            remove(idle, first);
          }
          if (connection === undefined) continue;
          const accepted = { socket, connection, calls: 0 };
          open.push(accepted);
          idle.push(accepted);
        } else if (peer !== undefined && what === 'begin') {
          peer.connection.beginCall();
          if (peer.calls === 0) remove(idle, peer);
          peer.calls += 1;
        } else if (peer !== undefined && what === 'end' && peer.calls > 0) {
          peer.connection.endCall();
          peer.calls -= 1;
          if (peer.calls === 0) idle.push(peer);
        } else if (peer !== undefined && what === 'hang up') {
          peer.socket.destroy();
          remove(open, peer);
          if (peer.calls === 0) remove(idle, peer);
        }
        expect(open.filter(({ socket }) => socket.destroyed)).toEqual([]);
      }
      connections.stop();
    }),
  );
});

describe('A4: when every connection has a call in progress', () => {
  const FULL = { maxConnections: 1, reserveConnections: 2 };

  it('a reserve connection may call health checks; other calls are refused; the connection is closed after either', async () => {
    const { peer, busyPeer } = await listen(FULL);
    const { peer: busy } = await busyPeer();
    for (const [path, answer] of [
      ['/health', /^HTTP\/1\.1 200 .*connection: close.*served$/is],
      ['/', /^HTTP\/1\.1 503 .*connection: close.*full$/is],
      ['/call', /^HTTP\/1\.1 503 /],
    ] as const) {
      const late = await peer();
      await late.get(path);
      await late.closed;
      expect(late.received, path).toMatch(answer);
    }
    expect(busy.socket.closed).toBe(false);
  });

  it('an HTTP/2 reserve connection gets the same answers and a GOAWAY frame', async () => {
    const { url, busyPeer } = await listen(FULL);
    await busyPeer();
    for (const [path, status, body] of [
      ['/health', 200, 'served'],
      ['/', 503, 'full'],
    ] as const) {
      const session = await http2Session(url);
      const goaway = once(session, 'goaway');
      const outcome = await rawCall(session, path, new Uint8Array());
      expect([outcome.http, outcome.body.toString(), outcome.reset], path).toEqual([status, body, 0]);
      await goaway;
      await until(() => session.destroyed, 'the connection is closed');
    }
  });

  it('calls that never end do not fill the reserve: the oldest reserve connection is closed for a new one', async () => {
    const { peer, busyPeer, warnings } = await listen(FULL);
    const regular = await busyPeer();
    const watches = [await busyPeer('/health/watch'), await busyPeer('/health/watch')];
    for (const watch of watches) {
      const probe = await peer();
      await watch.peer.closed;
      await probe.get('/health');
      expect(probe.received).toMatch(/^HTTP\/1\.1 200 .*served$/is);
      await probe.closed;
      await busyPeer('/health/watch');
    }
    expect(regular.peer.socket.closed).toBe(false);
    expect(warnings).toEqual([{ closedIdle: 0, refused: 1, ofAddresses: 0 }]);
  });

  it('without a reserve, a new connection is closed when it is accepted', async () => {
    const { number, busyPeer, warnings, port } = await listen({ maxConnections: 1, reserveConnections: 0 });
    await busyPeer();
    expect(await speak(number, GET)).toBe('');
    expect(port.counts()).toMatchObject({ sockets: 1, requests: 1 });
    expect(warnings).toEqual([{ closedIdle: 0, refused: 1, ofAddresses: 0 }]);
  });

  it('idle connections do not fill the reserve: the longest idle one is closed for a new one', async () => {
    const { peer, busyPeer } = await listen(FULL);
    await busyPeer();
    const idle = [await peer(), await peer()];
    const probe = await peer();
    await idle[0]!.closed;
    await probe.get('/health');
    expect(probe.received).toMatch(/^HTTP\/1\.1 200 /);
    expect(idle[1]!.socket.closed).toBe(false);
  });

  it('a reserve connection is served like any other once there is room below the bound', async () => {
    const { peer, busyPeer, settled } = await listen(FULL);
    const { peer: busy, end } = await busyPeer();
    const late = await peer();
    end();
    await settled();
    await late.get();
    await busy.closed;
    expect(late.received).toMatch(/^HTTP\/1\.1 200 .*connection: keep-alive.*served$/is);
    await settled();
    const next = await peer();
    await late.closed;
    await next.get();
    expect(next.received).toMatch(/^HTTP\/1\.1 200 /);
  });
});

describe('MS6: the connections of an address that have not shown a valid credential', () => {
  const CROWDED = { connectionsPerAddress: 2 };

  it('are closed, the longest idle one first, when more come; the others of the address are not', async () => {
    const { peer, settled, warnings } = await listen(CROWDED);
    const known = [await peer(), await peer()];
    for (const each of known) {
      await each.get('/known');
      await settled();
    }
    const strangers = [await peer(), await peer(), await peer(), await peer()];
    await Promise.all([strangers[0]!.closed, strangers[1]!.closed]);
    expect([...known, strangers[2]!, strangers[3]!].map(({ socket }) => socket.closed)).toEqual(Array(4).fill(false));
    expect(warnings).toEqual([{ closedIdle: 1, refused: 0, ofAddresses: 1 }]);
  });

  it('are told so if more come while all have calls in progress, which go on', async () => {
    const { peer, busyPeer } = await listen(CROWDED);
    const busy = [await busyPeer(), await busyPeer()];
    const late = await peer();
    await late.get('/');
    await late.closed;
    expect(late.received).toMatch(/^HTTP\/1\.1 503 .*connection: close.*crowded$/is);
    const probe = await peer();
    await probe.get('/health');
    expect(probe.received).toMatch(/^HTTP\/1\.1 200 .*served$/is);
    for (const { peer: each, end } of busy) {
      end();
      await until(() => each.received.includes('ended'), 'the call is answered');
    }
    const next = await peer();
    await next.get('/');
    expect(next.received).toMatch(/^HTTP\/1\.1 200 .*served$/is);
  });

  it('are as many as there are where no bound is set', async () => {
    const { peer, port } = await listen({});
    const strangers = [];
    for (let i = 0; i < 20; i += 1) strangers.push(await peer());
    expect(port.counts().sockets).toBe(20);
  });
});

describe('A4: the server warns the operator', () => {
  it('at the first closed connection, then at most once a minute, with the number of connections closed since', async () => {
    const { port, peer, warnings } = await listen({ maxConnections: 1 });
    for (let i = 0; i < 21; i += 1) await peer();
    expect(warnings).toEqual([{ closedIdle: 1, refused: 0, ofAddresses: 0 }]);
    await port.drain(0);
    expect(warnings).toEqual([
      { closedIdle: 1, refused: 0, ofAddresses: 0 },
      { closedIdle: 19, refused: 0, ofAddresses: 0 },
    ]);
  });

  it('again after a minute, if more connections were closed or refused', async () => {
    const { peer, busyPeer, warnings } = await listen({ maxConnections: 1, reserveConnections: 2, warnEveryMs: 100 });
    await peer();
    const { peer: busy } = await busyPeer();
    await (await peer()).get();
    await until(() => warnings.length >= 2, 'the second warning is logged');
    expect(warnings).toEqual([
      { closedIdle: 1, refused: 0, ofAddresses: 0 },
      { closedIdle: 0, refused: 1, ofAddresses: 0 },
    ]);
    expect(busy.socket.closed).toBe(false);
  });

  it('not at all while there is room', async () => {
    const { port, peer, warnings } = await listen({ maxConnections: 3 });
    for (let i = 0; i < 3; i += 1) await peer();
    await port.drain(0);
    expect(warnings).toEqual([]);
  });
});
