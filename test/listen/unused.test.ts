import { connect } from 'node:http2';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Unused } from '../../src/listen/unused.ts';
import { aborted } from '../../src/rpc/health.ts';
import { startTestServer } from '../support/test-server.ts';

describe('a port without connections', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it('is noticed after its time, counted from the start', () => {
    const unused = new Unused(10_000);
    unused.count(0);
    vi.advanceTimersByTime(9_999);
    expect(unused.signal.aborted).toBe(false);
    vi.advanceTimersByTime(1);
    expect(unused.signal.aborted).toBe(true);
  });

  it('is not noticed while there is one, however long, and later counts from the last disconnect', () => {
    const unused = new Unused(10_000);
    unused.count(0);
    vi.advanceTimersByTime(9_999);
    unused.count(1);
    unused.count(2);
    vi.advanceTimersByTime(3_600_000);
    unused.count(1);
    vi.advanceTimersByTime(3_600_000);
    expect(unused.signal.aborted).toBe(false);
    unused.count(0);
    vi.advanceTimersByTime(9_999);
    expect(unused.signal.aborted).toBe(false);
    vi.advanceTimersByTime(1);
    expect(unused.signal.aborted).toBe(true);
  });

  it('is not noticed after the port has stopped', () => {
    const unused = new Unused(10_000);
    unused.count(0);
    unused.stop();
    vi.advanceTimersByTime(3_600_000);
    expect(unused.signal.aborted).toBe(false);
  });
});

describe('a server with exitWhenUnused', () => {
  it('notices that its last client has disconnected', async () => {
    await using server = await startTestServer({ flags: { exitWhenUnused: '1' } });
    const session = connect(server.url);
    await new Promise((resolve) => session.once('remoteSettings', resolve));
    session.destroy();
    await aborted(server.unused!);
    expect(server.counts().sockets).toBe(0);
  });

  it('by default, never stops for want of clients', async () => {
    await using server = await startTestServer();
    expect(server.unused).toBeUndefined();
  });
});
