import { chmodSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Port } from '../../src/listen/port.ts';
import { until } from '../wire/raw.ts';

let folder: string;
const open = new Set<Port>();
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'anabranch-socket-'));
});
afterEach(async () => {
  for (const port of open) await port.drain(0);
  open.clear();
  rmSync(folder, { recursive: true });
});

function portAt(socket: string): Port {
  const port = new Port({
    socket,
    maxMessageBytes: 1000,
    maxStreams: 10,
    onError: () => undefined,
    handler: (_, response) => response.end('served'),
    allowedHosts: [],
  });
  open.add(port);
  return port;
}

function get(socketPath: string): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    http.get({ socketPath, agent: false }, (response) => resolve(response.resume().statusCode)).on('error', reject);
  });
}

const modeOf = (path: string) => (statSync(path).mode & 0o777).toString(8);

describe('A13: a Unix socket', () => {
  it('is created with its folder, for its user alone, and removed by a drain', async () => {
    const path = join(folder, 'new/deep/sock');
    const port = portAt(path);
    expect(await port.listen()).toMatchObject({ host: path, port: 0 });
    expect([modeOf(path), modeOf(join(folder, 'new/deep'))]).toEqual(['600', '700']);
    expect(await get(path)).toBe(200);
    await port.drain(0);
    expect(existsSync(path)).toBe(false);
  });

  it.each([0o750, 0o705, 0o777, 0o710, 0o702])('is refused in a folder of mode %o', async (mode) => {
    const shared = join(folder, 'shared');
    mkdirSync(shared);
    chmodSync(shared, mode);
    await expect(portAt(join(shared, 'sock')).listen()).rejects.toThrow(
      `other users may enter the folder ${shared} (mode 0${mode.toString(8)})`,
    );
    expect(existsSync(join(shared, 'sock'))).toBe(false);
  });

  it('that a killed server left is replaced', async () => {
    const path = join(folder, 'sock');
    // A server that ends without closing its socket leaves the file.
    const left = net.createServer().listen(join(folder, 'other'));
    await new Promise((resolve) => left.once('listening', resolve));
    renameSync(join(folder, 'other'), path);
    await new Promise((resolve) => left.close(resolve));
    expect(existsSync(path)).toBe(true);
    await portAt(path).listen();
    expect(await get(path)).toBe(200);
  });

  it('that a server uses is refused, and stays, whatever the server is', async () => {
    const path = join(folder, 'sock');
    await portAt(path).listen();
    await expect(portAt(path).listen()).rejects.toThrow('another server uses the socket');
    expect(await get(path)).toBe(200);

    const foreign = join(folder, 'foreign');
    const server = http.createServer((_, response) => response.writeHead(204).end()).listen(foreign);
    await new Promise((resolve) => server.once('listening', resolve));
    await expect(portAt(foreign).listen()).rejects.toThrow('another server uses the socket');
    expect(await get(foreign)).toBe(204);
    server.close();
  });

  it('never replaces a file that is no socket', async () => {
    const path = join(folder, 'notes');
    writeFileSync(path, 'of a person');
    await expect(portAt(path).listen()).rejects.toThrow('is not a socket');
    expect(statSync(path).size).toBe(11);
  });

  it('goes to exactly one of several servers that start at the same moment', async () => {
    const path = join(folder, 'sock');
    const started = await Promise.allSettled(Array.from({ length: 8 }, () => portAt(path).listen()));
    expect(started.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    expect(await get(path)).toBe(200);
  });

  it('can be used by the next server as soon as a drain has begun', async () => {
    const path = join(folder, 'sock');
    const first = portAt(path);
    await first.listen();
    const peer = net.connect(path);
    await until(() => first.counts().sockets === 1, 'a connection is open');
    const drained = first.drain(10_000);
    await portAt(path).listen();
    expect(await get(path)).toBe(200);
    peer.destroy();
    await drained;
    expect(await get(path)).toBe(200);
  });

  it('answers to localhost only, as A7 demands', async () => {
    const path = join(folder, 'sock');
    await portAt(path).listen();
    const status = await new Promise((resolve, reject) => {
      const request = http.get({ socketPath: path, agent: false, headers: { host: 'evil.example' } }, (response) =>
        resolve(response.resume().statusCode),
      );
      request.on('error', reject);
    });
    expect(status).toBe(421);
  });
});
