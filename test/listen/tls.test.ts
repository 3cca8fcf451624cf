import { once } from 'node:events';
import { mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import http2 from 'node:http2';
import https from 'node:https';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import tls from 'node:tls';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { ListenError } from '../../src/listen/address.ts';
import type { CertificateFacts } from '../../src/listen/certificate.ts';
import type { FailedHandshakes } from '../../src/listen/handshakes.ts';
import { type ListenOptions, Port, type PortLimits } from '../../src/listen/port.ts';
import { createAuthority, type Issued, writeIssued } from '../support/certificates.ts';
import { speak, until } from '../wire/raw.ts';

const authority = createAuthority();
const ca = authority.cert;
let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'anabranch-tls-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function write(issued: Issued): { readonly certFile: string; readonly keyFile: string } {
  const { tlsCert, tlsKey } = writeIssued(issued);
  return { certFile: tlsCert, keyFile: tlsKey };
}

interface Scene {
  readonly port: Port;
  readonly number: number;
  readonly certFile: string;
  readonly keyFile: string;
  readonly used: CertificateFacts[];
  readonly refused: string[];
  readonly failed: FailedHandshakes[];
}

const open = new Set<Port>();
afterEach(async () => {
  for (const port of open) await port.drain(0);
  open.clear();
});

async function listen(
  limits: Partial<PortLimits> = {},
  given = write(authority.issue()),
  options: Partial<ListenOptions> = {},
): Promise<Scene> {
  const told = { used: [] as CertificateFacts[], refused: [] as string[], failed: [] as FailedHandshakes[] };
  const port = new Port({
    host: '127.0.0.1',
    port: 0,
    maxMessageBytes: 1000,
    maxStreams: 10,
    onError: () => undefined,
    limits: { certificateMs: 5, warnEveryMs: 0, ...limits },
    tls: {
      ...given,
      using: (facts) => told.used.push(facts),
      refused: (reason) => told.refused.push(reason),
      failed: (failed) => told.failed.push(failed),
    },
    handler: (request, response) => {
      if (request.url === '/never') return;
      response.end(`you came by ${request.httpVersion}`);
    },
    ...options,
  } as ListenOptions);
  open.add(port);
  return { port, number: (await port.listen()).port, ...given, ...told };
}

/** Connects, and resolves with the socket or the code of the error. */
async function shake(number: number, options: tls.ConnectionOptions = {}): Promise<tls.TLSSocket | string> {
  const socket = tls.connect({ port: number, host: '127.0.0.1', ca, ...options });
  try {
    await once(socket, 'secureConnect');
    return socket.on('error', () => undefined);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error);
  }
}

async function session(number: number, options: http2.SecureClientSessionOptions = {}) {
  const opened = http2.connect(`https://localhost:${number}`, { ca, ...options });
  opened.on('error', () => undefined);
  await once(opened, 'connect');
  return opened;
}

async function get(session: http2.ClientHttp2Session): Promise<string> {
  const stream = session.request({ ':path': '/' });
  let text = '';
  for await (const piece of stream) text += String(piece);
  return text;
}

function serialOf(session: http2.ClientHttp2Session): string {
  return (session.socket as tls.TLSSocket).getPeerCertificate().serialNumber;
}

function httpsGet(number: number, options: tls.ConnectionOptions = {}): Promise<string> {
  return new Promise((resolve, reject) => {
    const request = https.get({ port: number, host: 'localhost', ca, agent: false, ...options }, async (response) => {
      let text = '';
      for await (const piece of response) text += String(piece);
      resolve(text);
    });
    request.on('error', reject);
  });
}

const isEmpty = ({ port }: Scene) => Object.values(port.counts()).every((count) => count === 0);

describe('A12: TLS', () => {
  it('serves HTTP/2 and HTTP/1.1 on one port, chosen by ALPN, and HTTP/1.1 without it', async () => {
    const scene = await listen();
    const h2 = await session(scene.number);
    expect(await get(h2)).toBe('you came by 2.0');
    expect(scene.port.counts()).toMatchObject({ sockets: 1, sessions: 1, handshakes: 0 });
    h2.close();
    expect(await httpsGet(scene.number, { ALPNProtocols: ['http/1.1'] })).toBe('you came by 1.1');
    for (const head of ['GET / HTTP/1.1', 'PRI * HTTP/2.0']) {
      const socket = (await shake(scene.number)) as tls.TLSSocket;
      expect(socket.alpnProtocol).toBe(false);
      socket.write(`${head}\r\nHost: localhost\r\nConnection: close\r\n\r\n`);
      const [answer] = (await once(socket, 'data')) as [Buffer];
      expect(answer.toString()).toMatch(head.startsWith('GET') ? /^HTTP\/1\.1 200 / : /^HTTP\/1\.1 400 /);
      socket.destroy();
    }
    await until(() => isEmpty(scene), 'everything is closed');
    expect(scene.failed).toEqual([]);
  });

  it('accepts TLS 1.2 and 1.3, and no older version', async () => {
    const { number } = await listen();
    for (const version of ['TLSv1.2', 'TLSv1.3'] as const) {
      const socket = (await shake(number, { minVersion: version, maxVersion: version })) as tls.TLSSocket;
      expect(socket.getProtocol()).toBe(version);
      socket.destroy();
    }
    expect(await shake(number, { minVersion: 'TLSv1', maxVersion: 'TLSv1.1', ciphers: 'ALL@SECLEVEL=0' })).toBe(
      'ERR_SSL_TLSV1_ALERT_PROTOCOL_VERSION',
    );
  });

  it('refuses renegotiation', async () => {
    const { number } = await listen();
    const socket = (await shake(number, { maxVersion: 'TLSv1.2' })) as tls.TLSSocket;
    socket.renegotiate({}, () => undefined);
    socket.write('GET / HTTP/1.1\r\n');
    await expect(once(socket, 'close')).rejects.toThrow('no renegotiation');
  });

  it('closes and counts connections that speak plain HTTP, other protocols or an incomplete handshake', async () => {
    const scene = await listen({ handshakeMs: 200 });
    expect(await speak(scene.number, 'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n')).toBe('');
    expect(await shake(scene.number, { ALPNProtocols: ['smtp'] })).toBe('ERR_SSL_TLSV1_ALERT_NO_APPLICATION_PROTOCOL');
    const cut = net.connect(scene.number, '127.0.0.1').on('error', () => undefined);
    cut.write(Buffer.from('1603010200', 'hex'));
    await once(cut.resume(), 'close'); // by the server, after 200 ms
    await until(() => scene.failed.length === 3, 'all are counted');
    expect(scene.failed).toEqual([
      { failed: 1, reason: 'ERR_SSL_HTTP_REQUEST' },
      { failed: 1, reason: 'ERR_SSL_NO_APPLICATION_PROTOCOL' },
      { failed: 1, reason: 'INCOMPLETE' },
    ]);
    // The probe of a load balancer.
    const probe = net.connect(scene.number, '127.0.0.1');
    await once(probe, 'connect');
    probe.destroy();
    await until(() => isEmpty(scene), 'everything is closed');
    expect(scene.failed).toHaveLength(3);
  });

  it('runs a limited number of handshakes at once, and those that hang give their place to others', async () => {
    const scene = await listen({ handshakes: 4, handshakeTurnMs: 300 });
    const hanging = Array.from({ length: 20 }, () => net.connect(scene.number, '127.0.0.1'));
    for (const socket of hanging) socket.on('error', () => undefined).resume();
    await until(() => scene.port.counts().sockets === 20, 'all are accepted');
    expect(scene.port.counts().handshakes).toBe(20);
    const sessions = await Promise.all(Array.from({ length: 12 }, () => session(scene.number)));
    expect(await Promise.all(sessions.map(get))).toEqual(sessions.map(() => 'you came by 2.0'));
    for (const each of sessions) each.destroy();
    for (const socket of hanging) socket.destroy();
    await until(() => isEmpty(scene), 'everything is closed');
  });

  it.runIf(process.platform === 'linux')('MS5: lets addresses shake hands in turn', async () => {
    const scene = await listen({ handshakes: 1, handshakeTurnMs: 1_000_000 });
    const hang = async () => {
      const { sockets } = scene.port.counts();
      const socket = net.connect({ port: scene.number, host: '127.0.0.1', localAddress: '127.0.0.2' });
      socket.on('error', () => undefined).resume();
      await until(() => scene.port.counts().sockets > sockets, 'it is accepted');
      return socket;
    };
    const running = await hang();
    const other = session(scene.number, { host: '127.0.0.1' });
    await until(() => scene.port.counts().handshakes === 2, 'it waits');
    // The newest of an address are served first, but not before another address.
    const newer = [await hang(), await hang()];
    running.destroy();
    expect(await get(await other)).toBe('you came by 2.0');
    for (const socket of newer) socket.destroy();
    (await other).destroy();
  });

  it('A4: connections count from accept, so handshakes that hang are closed for new connections', async () => {
    const scene = await listen({ maxConnections: 3, reserveConnections: 0 });
    const hanging = Array.from({ length: 3 }, () => net.connect(scene.number, '127.0.0.1'));
    await until(() => scene.port.counts().sockets === 3, 'all are accepted');
    const h2 = await session(scene.number);
    expect(await get(h2)).toBe('you came by 2.0');
    expect(scene.port.counts().sockets).toBe(3);
    h2.destroy();
    for (const socket of hanging) socket.destroy();
  });

  it('A7: pages of its own origin have the scheme https', async () => {
    const { number } = await listen();
    for (const [origin, status] of [
      [`https://localhost:${number}`, 200],
      [`http://localhost:${number}`, 403],
    ] as const) {
      const h2 = await session(number);
      const [headers] = await once(h2.request({ ':path': '/', origin }), 'response');
      expect(headers[':status'], origin).toBe(status);
      h2.destroy();
    }
  });

  it('A2: a drain ends handshakes and idle connections, and waits for calls', async () => {
    const scene = await listen({ hangUpMs: 50 });
    net.connect(scene.number, '127.0.0.1').on('error', () => undefined);
    const idle = (await shake(scene.number)) as tls.TLSSocket;
    const busy = await session(scene.number);
    const call = busy.request({ ':path': '/never' }).on('error', () => undefined);
    await until(() => scene.port.counts().requests === 1, 'the call has arrived');
    const drained = scene.port.drain(10_000);
    call.close();
    await drained;
    expect(isEmpty(scene)).toBe(true);
    idle.destroy();
    busy.destroy();
  });
});

describe('A12: a certificate that is replaced', () => {
  it('is used for new connections, and open streams continue', async () => {
    const scene = await listen();
    const before = await session(scene.number);
    const call = before.request({ ':path': '/never' });
    const [cert, key] = Object.values(authority.issue()) as [string, string];
    // One file after the other, as a program without links does.
    writeFileSync(scene.certFile, cert);
    writeFileSync(scene.keyFile, key);
    await until(() => scene.used.length === 2, 'the new one is used');
    const after = await session(scene.number);
    expect(serialOf(after)).not.toBe(serialOf(before));
    expect([await get(after), await get(before)]).toEqual(['you came by 2.0', 'you came by 2.0']);
    expect(call.closed).toBe(false);
    before.destroy();
    after.destroy();
  });

  it('is found through links, as Kubernetes replaces mounted secrets', async () => {
    const mount = join(folder, 'mount');
    const publish = (version: string, { cert, key }: Issued) => {
      mkdirSync(join(mount, version), { recursive: true });
      writeFileSync(join(mount, version, 'tls.crt'), cert);
      writeFileSync(join(mount, version, 'tls.key'), key);
      symlinkSync(version, join(mount, '..data_tmp'));
      renameSync(join(mount, '..data_tmp'), join(mount, '..data'));
    };
    publish('..1', authority.issue());
    for (const name of ['tls.crt', 'tls.key']) symlinkSync(join('..data', name), join(mount, name));
    const scene = await listen({}, { certFile: join(mount, 'tls.crt'), keyFile: join(mount, 'tls.key') });
    publish('..2', authority.issue({ commonName: 'second' }));
    await until(() => scene.used.length === 2, 'the new one is used');
    rmSync(join(mount, '..1'), { recursive: true });
    expect(scene.used[1]?.subject).toBe('CN=second');
    expect(scene.refused).toEqual([]);
  });

  it('under load, fails no handshake and no call', async () => {
    const scene = await listen();
    let rounds = 0;
    const load = async () => {
      while (scene.used.length < 20) {
        const h2 = await session(scene.number);
        expect(await get(h2)).toBe('you came by 2.0');
        h2.close();
        rounds += 1;
      }
    };
    const replace = async () => {
      while (scene.used.length < 20) {
        const count = scene.used.length;
        const { cert, key } = authority.issue();
        writeFileSync(scene.certFile, cert);
        writeFileSync(scene.keyFile, key);
        await until(() => scene.used.length > count, 'the new one is used');
      }
    };
    await Promise.all([load(), load(), load(), replace()]);
    expect(rounds).toBeGreaterThan(3);
    expect(scene.failed).toEqual([]);
  });

  const expired = () => authority.issue({ from: new Date('2020-01-01'), until: new Date('2021-01-01') });
  const later = () => authority.issue({ from: new Date(Date.now() + 3_600_000) });
  const FAULTS: readonly (readonly [string, () => Partial<Issued>, RegExp])[] = [
    ['the key of another certificate', () => ({ key: authority.issue().key }), /\.key is not the key of .*\.crt\./u],
    ['a certificate that is garbage', () => ({ cert: 'garbage' }), /\.crt holds no certificate in PEM format\./u],
    ['a key that is garbage', () => ({ key: 'garbage' }), /\.key holds no private key in PEM format/u],
    ['an empty certificate', () => ({ cert: '' }), /holds no certificate/u],
    ['an expired certificate', expired, /\.crt has expired on 2021-01-01T00:00:00\.000Z\./u],
    ['a certificate that is not valid yet', later, /\.crt is not valid before /u],
    [
      'a chain that ends in garbage',
      () => {
        const { cert, key } = authority.issue();
        return { cert: `${cert}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n`, key };
      },
      /cannot be used \(/u,
    ],
  ];

  it.each(FAULTS)('by %s is refused with one warning, and the one in use stays', async (_what, make, reason) => {
    const scene = await listen();
    const before = await session(scene.number);
    const { cert, key } = make();
    if (cert !== undefined) writeFileSync(scene.certFile, cert);
    if (key !== undefined) writeFileSync(scene.keyFile, key);
    await until(() => scene.refused.length === 1, 'it is refused');
    expect(scene.refused[0]).toMatch(reason);
    const after = await session(scene.number);
    expect(serialOf(after)).toBe(serialOf(before));
    rmSync(scene.keyFile);
    await until(() => scene.refused.length === 2, 'the missing file is reported as well');
    expect(scene.refused[1]).toMatch(/\.(?:key|crt) (?:cannot be read \(ENOENT\)|holds)/u);
    expect(scene.used).toHaveLength(1);
    const repaired = authority.issue();
    writeFileSync(scene.certFile, repaired.cert);
    writeFileSync(scene.keyFile, repaired.key);
    await until(() => scene.used.length === 2, 'a good one is used again');
    before.destroy();
    after.destroy();
  });

  it.each(FAULTS)('a server does not start with %s', async (_what, make, reason) => {
    const given = { ...authority.issue(), ...make() };
    const starting = listen({}, write(given));
    await expect(starting).rejects.toThrow(ListenError);
    await expect(starting).rejects.toThrow(reason);
  });
});
