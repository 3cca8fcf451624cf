import net from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { type ListenOptions, Port } from '../../src/listen/port.ts';
import { http2Session, RawCall, rawCall, speak, until } from '../wire/raw.ts';

let open: Port | undefined;
afterEach(() => open?.drain(0));

/** A port that answers 200 to every request that the guard lets through. */
async function listen(options: Partial<ListenOptions> = {}) {
  const port = new Port({
    host: '127.0.0.1',
    port: 0,
    maxMessageBytes: 1 << 20,
    maxStreams: 10,
    onError: (error) => {
      throw error;
    },
    handler: (_, response) => response.end('served'),
    allowedHosts: ['anabranch.example', '10.0.0.7', '[fd00::7]'],
    allowedOrigins: ['https://app.example', 'http://localhost:5173'],
    ...options,
  });
  open = port;
  return (await port.listen()).port;
}

type Answer = readonly [status: number, head: string, body: string];

/** Sends a request with these header lines over HTTP/1.1 and returns the response. */
async function ask(number: number, headers: readonly string[], target = '/', method = 'GET'): Promise<Answer> {
  const lines = [`${method} ${target} HTTP/1.1`, ...headers, 'Connection: close', '', ''];
  const received = await speak(number, lines.join('\r\n'));
  const [head = '', body = ''] = received.split('\r\n\r\n');
  return [Number(/^HTTP\/1\.1 (\d+)/.exec(head)?.[1]), head.toLowerCase(), body];
}

async function statusOf(number: number, headers: readonly string[], target?: string): Promise<number> {
  return (await ask(number, headers, target))[0];
}

const OWN = [
  'localhost',
  'localhost:50051',
  'LocalHost:1',
  'localhost.',
  'run-7.localhost:8080',
  '127.0.0.1',
  '127.0.0.1:50051',
  '127.255.255.254:80',
  '127.1',
  '[::1]',
  '[::1]:50051',
  '[0:0:0:0:0:0:0:1]:50051',
];
const ALLOWED = ['anabranch.example', 'ANABRANCH.example:443', 'anabranch.example.', '10.0.0.7:1', '[FD00:0::7]:1'];
const FOREIGN = [
  'evil.example',
  'EVIL.EXAMPLE:50051',
  'evil.example.',
  '127.0.0.1.evil.example',
  'localhost.evil.example:50051',
  'evil-localhost',
  'localhost-evil.example',
  'sub.anabranch.example',
  'anabranch.example.evil.example',
  '0.0.0.0:50051',
  '128.0.0.1',
  '10.0.0.8',
  '[::]:50051',
  '[::2]',
  '[::ffff:127.0.0.1]',
];

describe('A7: a server on loopback', () => {
  it.each([...OWN, ...ALLOWED])('answers requests to %s', async (host) => {
    const number = await listen();
    expect(await statusOf(number, [`Host: ${host}`])).toBe(200);
    const session = await http2Session(`http://127.0.0.1:${number}`);
    expect((await rawCall(session, '/', new Uint8Array(), { ':authority': host })).http).toBe(200);
    session.destroy();
  });

  it.each(FOREIGN)('answers 421 to requests to %s, in plain text', async (host) => {
    const number = await listen();
    const [status, head, body] = await ask(number, [`Host: ${host}`]);
    expect(status).toBe(421);
    expect(head).toContain('content-type: text/plain');
    expect(body).toBe(
      `The Host of the request is "${host}": this server answers only to localhost, 127.0.0.1, [::1] and the names of --allowed-host.\n`,
    );
    const session = await http2Session(`http://127.0.0.1:${number}`);
    const outcome = await rawCall(session, '/', new Uint8Array(), { ':authority': host });
    expect([outcome.http, outcome.body.toString()]).toEqual([421, body]);
    session.destroy();
  });

  it('answers 421 if one of several names in a request is foreign', async () => {
    const number = await listen();
    expect(await statusOf(number, ['Host: localhost', 'Host: evil.example'])).toBe(421);
    expect(await statusOf(number, ['Host: localhost', 'host: localhost:1'])).toBe(200);
    for (const target of ['http://evil.example/', 'HTTPS://EVIL.example:1/x', 'http://127.0.0.1@evil.example/'])
      expect(await statusOf(number, ['Host: localhost'], target), target).toBe(421);
    expect(await statusOf(number, ['Host: evil.example'], 'http://localhost/')).toBe(421);
    expect(await statusOf(number, ['Host: localhost'], 'http://localhost/')).toBe(200);
    expect(await statusOf(number, ['Host: localhost'], '/?from=http://evil.example/')).toBe(200);
    const session = await http2Session(`http://127.0.0.1:${number}`);
    for (const [authority, host, status] of [
      ['localhost', 'evil.example', 421],
      ['evil.example', 'localhost', 421],
      ['localhost', '127.0.0.1:1', 200],
    ] as const) {
      const outcome = await rawCall(session, '/', new Uint8Array(), { ':authority': authority, host });
      expect(outcome.http, `${authority}, ${host}`).toBe(status);
    }
    session.destroy();
  });

  it('a server beyond loopback answers requests to any name', async () => {
    const number = await listen({ allowedHosts: undefined });
    for (const host of [...OWN, ...FOREIGN]) expect(await statusOf(number, [`Host: ${host}`]), host).toBe(200);
  });
});

describe('A7: a web page', () => {
  it.each([
    'null',
    '',
    'https://evil.example',
    'http://localhost',
    'http://localhost:50052',
    'https://localhost:50051',
    'http://127.0.0.1:50051',
    'http://localhost:50051/',
    'http://localhost:50051.evil.example',
    'http://app.example',
    'https://app.example:8443',
    'https://sub.app.example',
    'https://app.example, https://app.example',
  ])('of origin "%s" gets 403 in plain text, which the page may not read', async (origin) => {
    const number = await listen();
    const [status, head, body] = await ask(number, ['Host: localhost:50051', `Origin: ${origin}`]);
    expect(status).toBe(403);
    expect(head).toContain('content-type: text/plain');
    expect(head).not.toContain('access-control-');
    expect(body).toMatch(/^The Origin of the request is ".*--allowed-origin\.\n$/);
    const session = await http2Session(`http://127.0.0.1:${number}`);
    const outcome = await rawCall(session, '/', new Uint8Array(), { ':authority': 'localhost:50051', origin });
    expect([outcome.http, outcome.body.toString()]).toEqual([403, body]);
    session.destroy();
  });

  it('that sends two Origin headers gets 403, even if one of them is listed', async () => {
    const number = await listen();
    expect(await statusOf(number, ['Host: localhost', 'Origin: https://app.example', 'Origin: null'])).toBe(403);
  });

  it.each(['localhost:50051', '127.0.0.1:50051', '[::1]:50051', 'anabranch.example'])(
    'of the server itself (%s) is served',
    async (host) => {
      const number = await listen();
      const [status, head] = await ask(number, [`Host: ${host}`, `Origin: http://${host}`]);
      expect(status).toBe(200);
      expect(head).not.toContain('access-control-');
    },
  );

  it('gets the same answers from a server beyond loopback', async () => {
    const number = await listen({ allowedHosts: undefined });
    expect(await statusOf(number, ['Host: a.example', 'Origin: http://a.example'])).toBe(200);
    expect(await statusOf(number, ['Host: a.example', 'Origin: http://b.example'])).toBe(403);
    expect(await statusOf(number, ['Host: a.example', 'Origin: https://app.example'])).toBe(200);
  });

  it('of a listed origin may read the answer and the status of a gRPC-Web call', async () => {
    const number = await listen();
    const [status, head] = await ask(number, ['Host: localhost', 'Origin: http://localhost:5173']);
    expect(status).toBe(200);
    expect(head).toContain('access-control-allow-origin: http://localhost:5173\r\n');
    expect(head).toContain(
      'access-control-expose-headers: grpc-status, grpc-message, grpc-status-details-bin, x-request-id\r\n',
    );
    expect(head).toContain('vary: origin\r\n');
  });

  it('gets answers with Vary: Origin if they depend on the origin, even without an Origin header', async () => {
    const number = await listen();
    expect((await ask(number, ['Host: localhost']))[1]).toContain('vary: origin\r\n');
    await open?.drain(0);
    const unlisted = await listen({ allowedOrigins: [] });
    expect((await ask(unlisted, ['Host: localhost']))[1]).not.toContain('vary');
  });
});

describe('A7: a request of which the browser says that it comes from another site', () => {
  const isPage = ({ url }: { url?: string | undefined }) => url === '/page';
  const FOREIGN_SITES = [
    'cross-site',
    'same-site',
    'Same-Origin',
    'NONE',
    'null',
    '"none"',
    '',
    'same-origin;a=b',
    'same-origin, same-origin',
    'same-origin, cross-site',
    'same-originx',
    'unknown',
  ];

  it.each(FOREIGN_SITES)(
    '("%s") gets 403 in plain text, by either protocol and with the own Origin too',
    async (site) => {
      const number = await listen({ isPage });
      const own = 'localhost:50051';
      for (const origin of [undefined, `http://${own}`]) {
        for (const method of ['GET', 'POST', 'HEAD', 'OPTIONS']) {
          const sent = [
            `Host: ${own}`,
            `Sec-Fetch-Site: ${site}`,
            ...(origin === undefined ? [] : [`Origin: ${origin}`]),
          ];
          const [status, head] = await ask(number, sent, '/', method);
          expect([status, head.includes('content-type: text/plain')], method).toEqual([403, true]);
        }
        const session = await http2Session(`http://127.0.0.1:${number}`);
        const headers = { ':authority': own, 'sec-fetch-site': site, ...(origin === undefined ? {} : { origin }) };
        const outcome = await rawCall(session, '/', new Uint8Array(), headers);
        expect(outcome.http).toBe(403);
        expect(outcome.body.toString()).toMatch(/^The Sec-Fetch-Site of the request is ".*--allowed-origin\.\n$/);
        session.destroy();
      }
    },
  );

  it('gets 403 if one of two headers says so', async () => {
    const number = await listen({ isPage });
    for (const sites of [
      ['none', 'cross-site'],
      ['cross-site', 'same-origin'],
    ]) {
      const lines = sites.map((site) => `Sec-Fetch-Site: ${site}`);
      expect(await statusOf(number, ['Host: localhost', ...lines])).toBe(403);
      const session = await http2Session(`http://127.0.0.1:${number}`);
      const outcome = await rawCall(session, '/', new Uint8Array(), {
        ':authority': 'localhost',
        'sec-fetch-site': sites,
      });
      expect(outcome.http).toBe(403);
      session.destroy();
    }
  });

  it('is served if its Origin is listed, or if it asks for the page', async () => {
    const number = await listen({ isPage });
    for (const site of ['cross-site', 'same-site']) {
      const sent = ['Host: localhost', `Sec-Fetch-Site: ${site}`];
      expect(await statusOf(number, [...sent, 'Origin: https://app.example'])).toBe(200);
      expect(await statusOf(number, [...sent, 'Origin: https://evil.example'])).toBe(403);
      expect(await statusOf(number, sent, '/page')).toBe(200);
      expect(await statusOf(number, sent, '/page2')).toBe(403);
    }
  });

  it('is told from one of the own page, of the user, and of clients that are no browsers', async () => {
    const number = await listen({ isPage });
    expect(await statusOf(number, ['Host: localhost'])).toBe(200);
    for (const site of ['same-origin', 'none'])
      expect(await statusOf(number, ['Host: localhost', `Sec-Fetch-Site: ${site}`])).toBe(200);
  });

  it('gets 403 from a server beyond loopback, too', async () => {
    const number = await listen({ allowedHosts: undefined });
    expect(await statusOf(number, ['Host: a.example', 'Sec-Fetch-Site: cross-site'])).toBe(403);
  });
});

describe('A7: every answer', () => {
  const SAFE = /x-content-type-options: nosniff\r\n.*cross-origin-resource-policy: same-origin\r\n/s;

  it.each([
    ['of the handler', 'GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n', 200],
    ['that has no Host', 'GET / HTTP/1.1\r\nConnection: close\r\n\r\n', 400],
    ['to a foreign name', 'GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n', 421],
    ['to a foreign page', 'GET / HTTP/1.1\r\nHost: a\r\nOrigin: null\r\nConnection: close\r\n\r\n', 421],
    ['to what is not HTTP', 'no request\r\n\r\n', 400],
    ['to too many headers', `GET / HTTP/1.1\r\nHost: localhost\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`, 431],
    ['to an expectation', 'GET / HTTP/1.1\r\nHost: localhost\r\nExpect: x\r\nConnection: close\r\n\r\n', 200],
  ])('%s keeps browsers from guessing its type, and other pages from embedding it', async (_, request, status) => {
    const said = (await speak(await listen(), request)).toLowerCase();
    expect(said).toMatch(new RegExp(`^http/1\\.1 ${status} `));
    expect(said).toMatch(SAFE);
  });

  it('to a listed origin may be embedded by its pages', async () => {
    const number = await listen();
    const [, head] = await ask(number, ['Host: localhost', 'Origin: https://app.example']);
    expect(head).toContain('cross-origin-resource-policy: cross-origin\r\n');
    expect(head).not.toContain('same-origin');
    expect(head).toContain('x-content-type-options: nosniff\r\n');
  });

  it('of an internal error is such an answer', async () => {
    const number = await listen({
      onError: () => undefined,
      handler: () => {
        throw new Error('a defect');
      },
    });
    const [status, head] = await ask(number, ['Host: localhost']);
    expect([status, SAFE.test(head)]).toEqual([500, true]);
  });
});

describe('A7: a preflight', () => {
  const PREFLIGHT = [
    'Access-Control-Request-Method: POST',
    'Access-Control-Request-Headers: content-type,x-grpc-web,x-user-agent',
  ];

  it('of a listed origin gets 204 with the methods and headers that the page may send', async () => {
    const number = await listen();
    const headers = ['Host: localhost', 'Origin: https://app.example', ...PREFLIGHT];
    const [status, head, body] = await ask(number, headers, '/anything', 'OPTIONS');
    expect([status, body]).toEqual([204, '']);
    expect(head).toContain('access-control-allow-origin: https://app.example\r\n');
    expect(head).toContain('access-control-allow-methods: get, post\r\n');
    expect(head).toContain('access-control-allow-headers: content-type,x-grpc-web,x-user-agent\r\n');
    expect(head).toContain('access-control-max-age: 7200\r\n');
    expect(head).toContain('vary: origin\r\n');
  });

  it('of any other origin, or to a foreign name, is refused', async () => {
    const number = await listen();
    const other = await ask(number, ['Host: localhost', 'Origin: null', ...PREFLIGHT], '/', 'OPTIONS');
    expect(other[0]).toBe(403);
    const foreign = ['Host: evil.example', 'Origin: https://app.example', ...PREFLIGHT];
    expect((await ask(number, foreign, '/', 'OPTIONS'))[0]).toBe(421);
    for (const [, head] of [other, await ask(number, foreign, '/', 'OPTIONS')])
      expect(head).not.toContain('access-control-');
  });

  it('is an OPTIONS request that asks for a method; other OPTIONS requests reach the handler', async () => {
    const number = await listen();
    const headers = ['Host: localhost', 'Origin: https://app.example'];
    expect((await ask(number, headers, '/', 'OPTIONS'))[0]).toBe(200);
    expect((await ask(number, [...headers, ...PREFLIGHT], '/'))[0]).toBe(200);
  });
});

describe('A7: the answer does not wait for the body', () => {
  it.each([
    ['421', 'Host: evil.example'],
    ['403', 'Host: localhost\r\nOrigin: null'],
  ])('a %s is sent before the body, which is not read', async (status, headers) => {
    let handled = 0;
    const number = await listen({ handler: () => (handled += 1), limits: { lingerMs: 50 } });
    const socket = net.connect(number, '127.0.0.1');
    let received = '';
    socket.on('data', (piece: Buffer) => (received += piece.toString('latin1')));
    socket.write(`POST / HTTP/1.1\r\n${headers}\r\nContent-Length: 1000000000\r\n\r\n`);
    await until(() => received.includes('\r\n\r\n'), 'the answer has arrived');
    expect(received).toContain(`HTTP/1.1 ${status} `);
    socket.destroy();

    const session = await http2Session(`http://127.0.0.1:${number}`);
    const call = new RawCall(session, '/', status === '421' ? { ':authority': 'evil.example' } : { origin: 'null' });
    const outcome = await call.outcome; // the body never ends
    expect(outcome.http).toBe(Number(status));
    session.destroy();
    expect(handled).toBe(0);
  });
});
