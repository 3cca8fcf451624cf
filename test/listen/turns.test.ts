import net from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import type { HttpRequest, HttpResponse } from '../../src/listen/http.ts';
import { Port } from '../../src/listen/port.ts';
import { until } from '../wire/raw.ts';

interface Handled {
  readonly request: HttpRequest;
  readonly response: HttpResponse;
}

const WAITING = 40;

let open: Port | undefined;
const sockets: net.Socket[] = [];
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy();
  await open?.drain(0);
});

/** A port that keeps its calls, for the test to answer, and one connection to it. */
async function listen() {
  const handled: Handled[] = [];
  const port = new Port({
    host: '127.0.0.1',
    port: 0,
    maxMessageBytes: 1 << 20,
    maxStreams: WAITING,
    onError: (error) => {
      throw error;
    },
    handler: (request, response) => handled.push({ request, response }),
  });
  open = port;
  const { port: number } = await port.listen();
  const socket = net.connect(number, '127.0.0.1');
  sockets.push(socket);
  const client = { socket, received: '' };
  socket.on('data', (piece: Buffer) => (client.received += piece.toString('latin1')));
  return { port, handled, client };
}

const get = (path: string) => `GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`;
const paths = (count: number) => Array.from({ length: count }, (_, i) => `/${i}`);

describe('A8: requests that an HTTP/1.1 client sends before it reads a response', () => {
  it('are handled one at a time, in order', async () => {
    const { port, handled, client } = await listen();
    client.socket.write(paths(WAITING).map(get).join(''));
    for (let i = 0; i < WAITING; i += 1) {
      await until(() => handled.length === i + 1, `request ${i}`);
      expect(handled[i]?.request.url).toBe(`/${i}`);
      expect(port.counts().requests).toBe(1);
      handled[i]?.response.end(`answer ${i}.`);
    }
    await until(() => client.received.endsWith(`answer ${WAITING - 1}.`), 'the last answer');
    expect(client.received.match(/answer \d+/g)).toEqual(paths(WAITING).map((path) => `answer ${path.slice(1)}`));
    await until(() => port.counts().requests === 0, 'no open request');
    client.socket.write(get('/later'));
    await until(() => handled.length === WAITING + 1, 'a later request');
  });

  it('are at most as many as an HTTP/2 connection has streams; beyond them, the connection is closed', async () => {
    const { port, handled, client } = await listen();
    client.socket.write(
      paths(1 + WAITING)
        .map(get)
        .join(''),
    );
    await until(() => handled.length === 1, 'the first request');
    client.socket.write(get('/further'));
    await until(() => port.counts().sockets === 0 && port.counts().requests === 0, 'the end of the connection');
    expect(handled).toHaveLength(1);
  });

  it('are forgotten when their client disconnects', async () => {
    const { port, handled, client } = await listen();
    client.socket.write(paths(3).map(get).join(''));
    await until(() => handled.length === 1, 'the first request');
    client.socket.destroy();
    await until(() => port.counts().sockets === 0 && port.counts().requests === 0, 'the end of the connection');
    expect(handled).toHaveLength(1);
  });

  it('are forgotten when the response before them closes the connection', async () => {
    const { port, handled, client } = await listen();
    client.socket.write(get('/0') + get('/1'));
    await until(() => handled.length === 1, 'the first request');
    handled[0]?.response.setHeader('connection', 'close');
    handled[0]?.response.end('bye');
    await until(() => port.counts().sockets === 0 && port.counts().requests === 0, 'the end of the connection');
    expect(handled).toHaveLength(1);
    await until(() => client.received.endsWith('bye'), 'the answer');
  });

  it('may have bodies, which are read when it is their turn', async () => {
    const { handled, client } = await listen();
    const body = 'x'.repeat(200_000);
    const post = `POST /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n`;
    client.socket.write(get('/0') + post + body + get('/2'));
    await until(() => handled.length === 1, 'the first request');
    handled[0]?.response.end('0');
    await until(() => handled.length === 2, 'the second request');
    let read = 0;
    for await (const piece of handled[1]!.request) read += (piece as Buffer).length;
    expect(read).toBe(body.length);
    handled[1]?.response.end('1');
    await until(() => handled.length === 3, 'the third request');
    expect(handled[2]?.request.url).toBe('/2');
  });
});
