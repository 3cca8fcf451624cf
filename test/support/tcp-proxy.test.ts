import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { startTcpProxy, type TcpProxy } from './tcp-proxy.ts';

/** A peer that remembers what it was sent and how each connection ended. */
class Echo {
  readonly server: Server;
  received = '';
  readonly sockets: Socket[] = [];
  readonly ends: string[] = [];

  constructor() {
    this.server = createServer((socket) => {
      this.sockets.push(socket);
      socket.setEncoding('latin1').on('data', (text) => {
        this.received += text;
        socket.write(text);
      });
      socket.on('error', (error: NodeJS.ErrnoException) => this.ends.push(error.code ?? ''));
      socket.on('end', () => this.ends.push('end'));
    });
  }
}

class Client {
  readonly socket: Socket;
  received = '';
  readonly ends: string[] = [];

  constructor(port: number) {
    this.socket = connect(port, '127.0.0.1');
    this.socket.setEncoding('latin1').on('data', (text) => {
      this.received += text;
    });
    this.socket.on('error', (error: NodeJS.ErrnoException) => this.ends.push(error.code ?? ''));
    this.socket.on('end', () => this.ends.push('end'));
  }
}

describe('startTcpProxy', () => {
  let echo: Echo;
  let proxy: TcpProxy;

  beforeEach(async () => {
    echo = new Echo();
    echo.server.listen(0, '127.0.0.1');
    await once(echo.server, 'listening');
    proxy = await startTcpProxy({ host: '127.0.0.1', port: (echo.server.address() as AddressInfo).port });
  });

  afterEach(async () => {
    await proxy.close();
    for (const socket of echo.sockets) socket.destroy();
    echo.server.close();
  });

  it('cuts after exactly the given number of bytes, with a reset for both sides', async () => {
    const client = new Client(proxy.port);
    const cut = proxy.cutAfter(10, 'toServer');
    client.socket.write('0123456789abcdef');
    await cut;
    await expect.poll(() => client.ends).toEqual(['ECONNRESET']);
    await expect.poll(() => echo.ends).toEqual(['ECONNRESET']);
    expect(proxy.delivered('toServer')).toBe(10);
    expect('0123456789'.startsWith(echo.received)).toBe(true);

    const next = new Client(proxy.port);
    next.socket.write('again');
    await once(next.socket, 'data');
    expect(next.received).toBe('again');
  });

  it('delivers nothing behind a black hole and reports nothing; after the release nothing is lost', async () => {
    const client = new Client(proxy.port);
    client.socket.write('a');
    await once(client.socket, 'data');
    proxy.blackhole();
    client.socket.write('b');
    const probe = new Client(proxy.port);
    probe.socket.write('c');
    await expect.poll(() => proxy.accepted).toBe(2);
    expect([client.received, client.ends, echo.received]).toEqual(['a', [], 'a']);
    await proxy.release();
    await expect.poll(() => [client.received, probe.received]).toEqual(['ab', 'c']);
  });

  it('tells a client of a muted connection after the release that the server broke it, or never accepted it', async () => {
    const client = new Client(proxy.port);
    client.socket.write('a');
    await once(client.socket, 'data');
    proxy.mute();
    const port = (echo.server.address() as AddressInfo).port;
    echo.server.close();
    echo.sockets[0]!.resetAndDestroy();
    await once(echo.server, 'close');
    const late = new Client(proxy.port);
    late.socket.write('b');
    await expect.poll(() => proxy.accepted).toBe(2);
    await once(connect(port, '127.0.0.1'), 'error'); // refused, as the connection of the proxy before it
    expect([client.ends, late.ends]).toEqual([[], []]);
    await proxy.release();
    await expect.poll(() => [client.ends, late.ends]).toEqual([['ECONNRESET'], ['ECONNRESET']]);
  });

  it('delivers held bytes of a client that left long ago, while the server saw no end of its connection', async () => {
    const client = new Client(proxy.port);
    client.socket.write('early ');
    await once(client.socket, 'data');
    proxy.hold();
    await new Promise((resolve) => client.socket.write('late', resolve));
    const other = new Client(proxy.port); // accepted after the proxy has read what came before
    await once(other.socket, 'connect');
    await expect.poll(() => proxy.accepted).toBe(2);
    proxy.cutClients();
    await expect.poll(() => client.ends).toEqual(['ECONNRESET']);
    expect([echo.received, echo.ends]).toEqual(['early ', []]);
    await proxy.release();
    await expect.poll(() => echo.received).toBe('early late');
    expect(echo.ends).toEqual([]);
  });
});
