import { once } from 'node:events';
import { type ClientHttp2Session, connect } from 'node:http2';
import { text } from 'node:stream/consumers';
import { describe, expect, it } from 'vitest';
import { Port } from '../../src/listen/port.ts';

/** Longer than any test: a test that waits for it fails by the timeout of vitest. */
const GRACE_MS = 600_000;

async function listen(handler: ConstructorParameters<typeof Port>[0]['handler']) {
  const onError = (error: unknown) => {
    throw error;
  };
  const port = new Port({ host: '127.0.0.1', port: 0, handler, maxMessageBytes: 1 << 20, maxStreams: 100, onError });
  const { port: number } = await port.listen();
  const client: ClientHttp2Session = connect(`http://127.0.0.1:${number}`);
  return { port, client };
}

describe('A2: a drain', () => {
  it('does not wait for idle connections', async () => {
    const { port, client } = await listen((_, response) => void response.end('done'));
    expect(await text(client.request({ ':path': '/' }))).toBe('done');
    await Promise.all([port.drain(GRACE_MS), once(client, 'close')]);
    expect(Object.entries(port.counts()).filter(([, count]) => count > 0)).toEqual([]);
  });

  it('lets calls in progress end, and then stops waiting', async () => {
    const called = Promise.withResolvers<() => void>();
    const { port, client } = await listen((_, response) => called.resolve(() => response.end('done')));
    const answer = text(client.request({ ':path': '/' }));
    const finish = await called.promise;
    const drained = port.drain(GRACE_MS);
    await once(client, 'goaway');
    finish();
    expect(await answer).toBe('done');
    await Promise.all([drained, once(client, 'close')]);
    expect(Object.entries(port.counts()).filter(([, count]) => count > 0)).toEqual([]);
  });
});
