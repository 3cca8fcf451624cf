import { once } from 'node:events';
import net from 'node:net';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { openTlsTunnel } from '../support/tls-tunnel.ts';
import { http2Session, inEnvelope, rawCall, until } from './raw.ts';

/**
 * T15: frames in numbers that no client sends. The connection may end or not; the server stays up, and keeps nothing of
 * it.
 */

const CREATE = '/anabranch.v1.TrajectoryService/CreateTrajectory';
const [DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION] = [0, 1, 2, 3, 4, 6, 8, 9];
const END_STREAM = 1;
const END_HEADERS = 4;

function frame(type: number, flags: number, stream: number, payload: Uint8Array = new Uint8Array()): Buffer {
  const header = Buffer.alloc(9);
  header.writeUIntBE(payload.length, 0, 3);
  header.writeUInt8(type, 3);
  header.writeUInt8(flags, 4);
  header.writeUInt32BE(stream, 5);
  return Buffer.concat([header, payload]);
}

function framesIn(said: Buffer): Set<number> {
  const types = new Set<number>();
  for (let at = 0; at + 9 <= said.length; at += 9 + said.readUIntBE(at, 3)) types.add(said.readUInt8(at + 3));
  return types;
}

/** A header block of literals without indexing. */
function block(headers: Readonly<Record<string, string>>): Buffer {
  const text = (value: string) => Buffer.concat([Buffer.from([value.length]), Buffer.from(value, 'latin1')]);
  return Buffer.concat(Object.entries(headers).flatMap(([name, value]) => [Buffer.from([0]), text(name), text(value)]));
}

const REQUEST = block({
  ':method': 'POST',
  ':path': CREATE,
  ':scheme': 'http',
  ':authority': 'localhost',
  'content-type': 'application/grpc',
  te: 'trailers',
});
const uint32 = (value: number) => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
};
const numbers = (count: number) => Array.from({ length: count }, (_, i) => 2 * i + 1);

const FLOODS: readonly (readonly [string, () => Buffer[]])[] = [
  ['20,000 PINGs', () => new Array(20_000).fill(frame(PING, 0, 0, Buffer.alloc(8)))],
  ['20,000 SETTINGS', () => new Array(20_000).fill(frame(SETTINGS, 0, 0))],
  ['20,000 WINDOW_UPDATEs', () => new Array(20_000).fill(frame(WINDOW_UPDATE, 0, 0, uint32(1)))],
  ['20,000 PRIORITYs', () => new Array(20_000).fill(frame(PRIORITY, 0, 1, Buffer.from([0, 0, 0, 3, 1])))],
  ['20,000 empty DATAs', () => [frame(HEADERS, END_HEADERS, 1, REQUEST), ...new Array(20_000).fill(frame(DATA, 0, 1))]],
  [
    '20,000 CONTINUATIONs',
    () => [frame(HEADERS, 0, 1, REQUEST), ...new Array(20_000).fill(frame(CONTINUATION, 0, 1, block({ 'x-a': 'b' })))],
  ],
  [
    '20,000 rapid resets',
    () => numbers(20_000).flatMap((n) => [frame(HEADERS, END_HEADERS, n, REQUEST), frame(RST_STREAM, 0, n, uint32(8))]),
  ],
  ['20,000 streams that are only opened', () => numbers(20_000).map((n) => frame(HEADERS, END_HEADERS, n, REQUEST))],
  [
    'DATA after the end of its stream',
    () => [frame(HEADERS, END_HEADERS | END_STREAM, 1, REQUEST), frame(DATA, 0, 1, Buffer.alloc(10))],
  ],
  [
    'a RST_STREAM of the wrong length',
    () => [frame(HEADERS, END_HEADERS, 1, REQUEST), frame(RST_STREAM, 0, 1, Buffer.alloc(3))],
  ],
  [
    'a window that overflows',
    () => [frame(HEADERS, END_HEADERS, 1, REQUEST), frame(WINDOW_UPDATE, 0, 1, uint32(2 ** 31 - 1))],
  ],
  ['headers that are not HPACK', () => [frame(HEADERS, END_HEADERS, 1, Buffer.alloc(50, 0xff))]],
];

describe.each(['without TLS', 'over TLS', 'without a credential'])('T15: floods %s', (kind) => {
  const isRefused = kind === 'without a credential';
  const expected = isRefused ? Code.Unauthenticated : 0;
  let server: TestServer;
  let door: { readonly port: number; readonly url: string };
  let close = async () => {};
  beforeAll(async () => {
    const authority = createAuthority();
    const flags = kind === 'over TLS' ? { ...writeIssued(authority.issue()) } : {};
    server = await startTestServer({ flags, settings: { authenticated: isRefused } });
    door = server;
    if (kind === 'over TLS') {
      const tunnel = await openTlsTunnel(server.port, authority.cert);
      door = tunnel;
      close = tunnel.close;
    }
  });
  afterAll(async () => {
    await close();
    await server.stop();
  });
  afterEach(() =>
    until(() => Object.values(server.counts()).every((count) => count === 0), 'nothing is open any more'),
  );

  it('the hand-made frames of these tests are a valid request when sent in order', async () => {
    const socket = net.connect(door.port, '127.0.0.1');
    let said: Buffer = Buffer.alloc(0);
    socket.on('data', (piece: Buffer) => {
      said = Buffer.concat([said, piece]);
    });
    socket.write(Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'latin1'));
    const request = [frame(HEADERS, END_HEADERS, 1, REQUEST), frame(DATA, END_STREAM, 1, inEnvelope(new Uint8Array()))];
    socket.write(Buffer.concat([frame(SETTINGS, 0, 0), ...request]));
    await until(() => framesIn(said).has(isRefused ? HEADERS : DATA), 'it is answered');
    socket.destroy();
  });

  it.each(FLOODS)('%s', async (_what, frames) => {
    const other = await http2Session(door.url);
    const socket = net.connect(door.port, '127.0.0.1');
    socket.on('error', () => undefined); // closed by the server, which is a valid end
    socket.resume();
    await once(socket, 'connect');
    socket.write(Buffer.concat([Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'latin1'), frame(SETTINGS, 0, 0)]));
    const flood = frames();
    for (let at = 0; at < flood.length && !socket.destroyed; at += 500) {
      if (!socket.write(Buffer.concat(flood.slice(at, at + 500)))) {
        await Promise.race([once(socket, 'drain'), once(socket, 'close')]).catch(() => undefined);
      }
    }
    expect((await rawCall(other, CREATE, inEnvelope(new Uint8Array()))).status, 'others are answered').toBe(expected);
    socket.destroy();
    other.destroy();
  });
});
