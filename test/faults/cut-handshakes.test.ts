import { once } from 'node:events';
import net from 'node:net';
import { Duplex } from 'node:stream';
import tls from 'node:tls';
import { expect, it } from 'vitest';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { dose } from '../support/dose.ts';
import { openTlsTunnel } from '../support/tls-tunnel.ts';
import { reportFigures } from './figures.ts';
import { startNeighbour } from './hostile/neighbour.ts';
import { type Random, seededRandom } from './random.ts';
import { watchServer } from './watched/watched-server.ts';

const HANDSHAKES = dose(1_500, 10_000);
const AT_ONCE = 32;
/** Bytes that a client sends until it may call, and a few more. */
const CLIENT_BYTES = 700;

/**
 * Sends a random part of a handshake, of which some bits can be wrong, and leaves by a FIN, by a reset or not at all.
 */
async function cutHandshake(port: number, random: Random, hanging: Set<net.Socket>): Promise<void> {
  const socket = net.connect({ host: '127.0.0.1', port });
  await once(socket, 'connect');
  const closed = once(socket, 'close').catch(() => undefined);
  socket.on('error', () => undefined);
  let left = random.between(0, CLIENT_BYTES);
  const end = random.pick(['fin', 'fin', 'reset', 'reset', 'hang'] as const);
  const cut = () => {
    if (end === 'reset') socket.resetAndDestroy();
    else if (end === 'fin') socket.destroySoon();
    else hanging.add(socket);
  };
  const channel = new Duplex({
    read: () => undefined,
    write: (bytes: Buffer, _encoding, done) => {
      const piece = Buffer.from(bytes.subarray(0, left));
      if (piece.length > 0 && random.next() < 0.2)
        piece[random.between(0, piece.length - 1)]! ^= 1 << random.between(0, 7);
      left -= piece.length;
      socket.write(piece);
      if (left === 0) cut();
      done();
    },
  });
  socket.on('data', (piece) => channel.push(piece));
  socket.once('close', () => channel.destroy());
  const secure = tls.connect({ socket: channel, rejectUnauthorized: false, ALPNProtocols: ['h2'] });
  secure.on('error', () => undefined);
  // The rest of the bytes of a client whose handshake is complete.
  secure.once('secureConnect', () => secure.write(Buffer.alloc(CLIENT_BYTES)));
  // The server refuses bytes that were changed.
  const refused = once(secure, 'close').catch(() => undefined);
  if (end === 'hang') await Promise.race([closed, refused, new Promise((done) => setTimeout(done, 20))]);
  else await closed;
}

it(`A12, T11: ${HANDSHAKES} handshakes that are cut at random bytes disturb nobody, and leave nothing behind`, async () => {
  const random = seededRandom();
  const authority = createAuthority();
  await using server = await watchServer({ engine: 'sqlite', flags: { ...writeIssued(authority.issue()) } });
  const tunnel = await openTlsTunnel(server.port, authority.cert);
  const files = await server.files();
  const before = await server.memory();
  await server.forgetPeak();
  const neighbour = await startNeighbour({ address: tunnel.url });
  const hanging = new Set<net.Socket>();
  let begun = 0;
  const attacker = async () => {
    while (begun < HANDSHAKES) {
      begun += 1;
      await cutHandshake(server.port, random, hanging);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, attacker));
  // A new client gets its turn although handshakes hang.
  const late = await startNeighbour({ address: tunnel.url });
  const lateCalls = await late.leave();
  const { calls, slowestMs } = await neighbour.leave();
  for (const socket of hanging) socket.destroy();
  await tunnel.close();
  await server.empty(10_000);
  const after = await server.memory();
  reportFigures('cut handshakes', {
    seed: random.seed,
    handshakes: begun,
    'hanging at the end': hanging.size,
    'memory before (MiB)': Math.round(before.now),
    'memory at most (MiB)': Math.round(after.peak),
    "a neighbour's calls": calls,
    'the slowest of them (ms)': Math.round(slowestMs),
  });
  expect(server.alive).toBe(true);
  expect(calls).toBeGreaterThan(0);
  expect(lateCalls.calls).toBeGreaterThan(0);
  expect(slowestMs).toBeLessThan(3_000);
  expect(after.peak - before.now).toBeLessThan(200);
  expect(await server.files()).toBeLessThanOrEqual(files + 12);
  expect(server.output()).toContain('TLS handshakes failed');
  expect(server.output()).not.toMatch(/internal error|unhandled|uncaught/iu);
});
