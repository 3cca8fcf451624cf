import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { constants } from 'node:http2';
import os from 'node:os';
import path from 'node:path';
import { buffer } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { HttpResponse } from '../../src/listen/http.ts';
import { Port } from '../../src/listen/port.ts';
import { UnsentMessages } from '../../src/listen/unsent.ts';
import { type PageMode, servePage } from '../../src/page.ts';
import { http2Session, until } from '../wire/raw.ts';

let folder: string;
let open: Port | undefined;
/** In the order of their requests. */
let answers: HttpResponse[] = [];
/** What each response ended with. */
let sent: unknown[] = [];
beforeEach(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-page-'));
});
afterEach(async () => {
  await open?.drain(0);
  await rm(folder, { recursive: true });
});

async function build(files: Readonly<Record<string, string>>): Promise<void> {
  for (const [name, text] of Object.entries(files)) {
    await mkdir(path.dirname(path.join(folder, name)), { recursive: true });
    await writeFile(path.join(folder, `${name}.gz`), gzipSync(text));
  }
}

const UNSENT_BYTES = 1 << 20;

const BUILT = {
  'index.html': '<meta name="anabranch-page" content="write" />',
  'assets/index-abc.js': 'run();',
};

/** Serves the page, and 418 for every path that is not the page's. Returns the server's address. */
async function serve(mode: PageMode = 'write', waitingBytes = Infinity): Promise<string> {
  const page = servePage(mode, new UnsentMessages(UNSENT_BYTES, waitingBytes), [path.join(folder, 'missing'), folder]);
  answers = [];
  sent = [];
  open = new Port({
    host: '127.0.0.1',
    port: 0,
    maxMessageBytes: 1 << 20,
    maxStreams: 100,
    onError: (error) => {
      throw error;
    },
    handler: (request, response) => {
      answers.push(response);
      const end = response.end.bind(response) as (...given: unknown[]) => unknown;
      const noted = (...given: unknown[]) => {
        sent.push(given[0]);
        return end(...given);
      };
      Object.assign(response, { end: noted });
      if (page(request, response)) return;
      response.statusCode = 418;
      response.end();
    },
  });
  return `http://127.0.0.1:${(await open.listen()).port}`;
}

describe('the page, as the server sends it', () => {
  it('serves the same document for every view, and leaves other paths to the RPCs', async () => {
    await build(BUILT);
    const url = await serve();
    for (const view of [
      '/',
      '/?x=1',
      '/runs',
      '/runs/a',
      '/runs/a/groups/b',
      '/trees/a?at=b',
      '/rollouts/a',
      '/compare?ids=a,b',
      '/search',
    ]) {
      expect(await (await fetch(url + view)).text(), view).toBe(BUILT['index.html']);
    }
    for (const other of [
      '/healthz',
      '/states/a',
      '/runsx',
      '/assets/other.js',
      '/assets/../index.html.gz',
      '/index.html.gz',
    ]) {
      expect((await fetch(url + other)).status, other).toBe(418);
    }
  });

  it('serves files before the document was requested', async () => {
    await build(BUILT);
    expect(await (await fetch(`${await serve()}/assets/index-abc.js`)).text()).toBe('run();');
  });

  it('serves the reference of the API as text', async () => {
    await build({ ...BUILT, 'docs.txt': '# Anabranch' });
    const reference = await fetch(`${await serve()}/docs.txt`);
    expect([reference.headers.get('content-type'), await reference.text()]).toEqual([
      'text/plain; charset=utf-8',
      '# Anabranch',
    ]);
  });

  it('serves the reference of the API as a page', async () => {
    await build({ ...BUILT, 'docs.html': '<h1>API reference</h1>' });
    const reference = await fetch(`${await serve()}/docs`);
    expect([reference.headers.get('content-type'), await reference.text()]).toEqual([
      'text/html; charset=utf-8',
      '<h1>API reference</h1>',
    ]);
  });

  it('tells the document whether operations are offered', async () => {
    await build(BUILT);
    expect(await (await fetch(await serve('read'))).text()).toBe('<meta name="anabranch-page" content="read" />');
  });

  it('sends a policy that forbids markup, frames and other origins', async () => {
    await build(BUILT);
    const { headers } = await fetch(await serve());
    expect(headers.get('content-type')).toBe('text/html; charset=utf-8');
    expect(headers.get('x-content-type-options')).toBe('nosniff');
    expect(headers.get('content-security-policy')).toMatch(/^default-src 'self'; img-src 'self' blob:;/);
    expect(headers.get('content-security-policy')).toContain("frame-ancestors 'none'");
    expect(headers.get('content-security-policy')).not.toContain('unsafe');
  });

  it('lets browsers keep files with hashed names, and asks them to revalidate the document', async () => {
    await build(BUILT);
    const url = await serve();
    const document = await fetch(url);
    expect(document.headers.get('cache-control')).toBe('no-cache');
    const again = await fetch(url, { headers: { 'if-none-match': document.headers.get('etag') ?? '' } });
    expect([again.status, await again.text()]).toEqual([304, '']);
    const script = await fetch(`${url}/assets/index-abc.js`);
    expect(script.headers.get('cache-control')).toBe('public, max-age=31536000, immutable');
    expect([script.headers.get('content-type'), await script.text()]).toEqual([
      'text/javascript; charset=utf-8',
      'run();',
    ]);
  });

  it('sends plain bytes to a client that cannot decompress them, and none to HEAD', async () => {
    await build(BUILT);
    const url = await serve();
    const plain = await fetch(url, { headers: { 'accept-encoding': 'identity' } });
    expect(plain.headers.get('content-encoding')).toBeNull();
    expect(await plain.text()).toBe(BUILT['index.html']);
    const head = await fetch(url, { method: 'HEAD' });
    expect([head.status, await head.text()]).toEqual([200, '']);
  });

  it('leaves other methods than GET and HEAD to the RPCs', async () => {
    await build(BUILT);
    expect((await fetch(await serve(), { method: 'POST' })).status).toBe(418);
  });

  it('answers over HTTP/2 too', async () => {
    await build(BUILT);
    const session = await http2Session(await serve());
    const stream = session.request({ ':path': '/trees/a' });
    const status = await new Promise((resolve) => stream.on('response', (headers) => resolve(headers[':status'])));
    expect(status).toBe(200);
    session.destroy();
  });

  it.each(['gzip', 'identity'])(
    'A8: responses to clients that accept %s share the bytes of a file',
    async (accepted) => {
      await build(BUILT);
      const url = await serve();
      for (let i = 0; i < 3; i += 1) {
        const script = await fetch(`${url}/assets/index-abc.js`, { headers: { 'accept-encoding': accepted } });
        expect(await script.text()).toBe('run();');
      }
      expect(sent).toHaveLength(3);
      expect(new Set(sent).size).toBe(1);
    },
  );

  it('A8: files that an HTTP/2 client does not read wait beyond a bound, and are complete once it reads', async () => {
    const text = randomBytes(100_000).toString('hex');
    await build({ ...BUILT, 'docs.html': text, 'docs.txt': text, 'assets/large.js': text });
    const session = await http2Session(await serve(), { settings: { initialWindowSize: 0 } });
    const paths = Array.from({ length: 99 }, (_, i) => ['/docs', '/docs.txt', '/assets/large.js'][i % 3]);
    const streams = paths.map((path) => session.request({ ':path': path }));
    await until(() => answers.length === 99, 'all requests are handled');
    const unsent = answers.reduce((sum, answer) => sum + ('stream' in answer ? answer.stream.writableLength : 0), 0);
    expect(unsent).toBeGreaterThan(0);
    expect(unsent).toBeLessThanOrEqual(UNSENT_BYTES);
    // A small file does not wait.
    const small = session.request({ ':path': '/assets/index-abc.js' });
    expect((await once(small, 'response'))[0]).toMatchObject({ ':status': 200 });
    small.close();
    const read = Promise.all(streams.map((stream) => buffer(stream)));
    session.settings({ initialWindowSize: 1 << 20 });
    for (const bytes of await read) expect(bytes.length).toBe(text.length);
    session.destroy();
  });

  it('A8: files that must not even wait are cut off, and others are served later', async () => {
    const text = randomBytes(UNSENT_BYTES / 2).toString('hex');
    await build({ ...BUILT, 'docs.html': text });
    const url = await serve('write', UNSENT_BYTES);
    const session = await http2Session(url, { settings: { initialWindowSize: 0 } });
    const [first, waiting, refused] = [1, 2, 3].map(() => session.request({ ':path': '/docs' }));
    refused!.on('error', () => undefined);
    await once(refused!, 'close').catch(() => undefined);
    expect(refused!.rstCode).toBe(constants.NGHTTP2_ENHANCE_YOUR_CALM);
    const read = Promise.all([buffer(first!), buffer(waiting!)]);
    session.settings({ initialWindowSize: 1 << 20 });
    for (const { length } of await read) expect(length).toBe(text.length);
    expect((await buffer(session.request({ ':path': '/docs' }))).length).toBe(text.length);
    session.destroy();
  });

  it('explains how to build a page that is not built, and serves it as soon as it is', async () => {
    const url = await serve();
    const missing = await fetch(url);
    expect([missing.status, await missing.text()]).toEqual([404, expect.stringContaining('npm run build:page')]);
    await build(BUILT);
    expect((await fetch(url)).status).toBe(200);
  });
});
