import { once } from 'node:events';
import http2, { type ServerHttp2Session } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Connection } from '../../src/listen/connections.ts';
import { Sessions } from '../../src/listen/sessions.ts';

const LIMITS = { pingEveryMs: 100, pingTimeoutMs: 100, idleMs: 100, maxAgeMs: undefined };

describe('HTTP/2 sessions of a port', () => {
  const server = http2.createServer();
  let session: ServerHttp2Session;
  let client: http2.ClientHttp2Session;

  beforeEach(async () => {
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const opened = once(server, 'session') as Promise<[ServerHttp2Session]>;
    client = http2.connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    [session] = await opened;
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
  });

  afterEach(async () => {
    vi.useRealTimers();
    client.destroy();
    await new Promise((resolve) => server.close(resolve));
  });

  it.each([
    ['pinged', { idleMs: 10_000 }],
    ['asked to close', {}],
    ['asked to close for its age', { idleMs: 10_000, maxAgeMs: 100 }],
  ])('A2: a session that is destroyed, and has not said so yet, is not %s', (_what, limits) => {
    const sessions = new Sessions({ ...LIMITS, ...limits });
    sessions.add(session, { beginCall: () => undefined, endCall: () => undefined } as Connection);
    session.destroy();
    expect(sessions.size).toBe(1);
    vi.advanceTimersByTime(1000);
    sessions.stop();
  });
});
