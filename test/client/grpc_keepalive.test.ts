import { once } from 'node:events';
import { Code } from '@connectrpc/connect';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { type Answer, answering, GRPC, startRawPeer } from './raw-peer.ts';

const EMPTY = Buffer.alloc(5);
const OK = answering(EMPTY);

let proxy: TcpProxy;

beforeEach(async () => {
  proxy = await startTcpProxy({ host: '127.0.0.1', port: 1 });
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
});

afterEach(async () => {
  vi.useRealTimers();
  await proxy.close();
});

/** Answers with headers, and with the rest when the test says so. */
function openAnswer() {
  const begun = Promise.withResolvers<void>();
  const finishing = Promise.withResolvers<void>();
  const answer: Answer = async (stream) => {
    stream.respond(GRPC, { waitForTrailers: true });
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }));
    begun.resolve();
    await finishing.promise;
    stream.end(EMPTY);
  };
  return { answer, begun: begun.promise, finish: finishing.resolve };
}

it('a call fails as UNAVAILABLE 45 seconds after its path has died, and the next one connects again', async () => {
  const { answer, begun } = openAnswer();
  await using peer = await startRawPeer([answer, OK], { via: proxy });
  const calling = peer.trajectories.appendStep({}).catch((error: unknown) => error);
  await begun;
  proxy.blackhole();
  vi.advanceTimersByTime(30_001);
  expect(proxy.open).toBe(1);
  vi.advanceTimersByTime(15_000);
  expect(await calling).toMatchObject({ code: Code.Unavailable });
  await proxy.release();
  await peer.trajectories.appendStep({});
  expect(proxy.accepted).toBe(2);
});

it('a silent connection whose peer answers pings is kept', async () => {
  const { answer, begun, finish } = openAnswer();
  await using peer = await startRawPeer([answer], { via: proxy });
  const calling = peer.trajectories.appendStep({}, { timeoutMs: 1_000_000 });
  await begun;
  for (let i = 0; i < 5; i++) {
    const pinged = once(peer.sessions[0]!, 'ping');
    vi.advanceTimersByTime(30_001);
    await pinged;
    // The answer of a ping of the server comes after the pong.
    await new Promise((resolve) => peer.sessions[0]!.ping(resolve));
  }
  finish();
  await calling;
  expect(proxy.accepted).toBe(1);
});

it('after a pause, a call finds out whether the connection is alive, and succeeds on another one if it is not', async () => {
  await using peer = await startRawPeer([OK], { via: proxy });
  await peer.trajectories.appendStep({});
  vi.advanceTimersByTime(30_001);
  await peer.trajectories.appendStep({});
  expect(proxy.accepted).toBe(1);
  proxy.blackhole();
  vi.advanceTimersByTime(30_001);
  const calls = [peer.trajectories.appendStep({}), peer.trajectories.appendStep({})];
  vi.advanceTimersByTime(15_000);
  await vi.waitFor(() => expect(proxy.accepted).toBe(2));
  await proxy.release();
  await Promise.all(calls);
  expect(proxy.accepted).toBe(2);
});

it('a deadline ends the wait for the answer to a ping', async () => {
  await using peer = await startRawPeer([OK], { via: proxy });
  await peer.trajectories.appendStep({});
  proxy.blackhole();
  vi.advanceTimersByTime(30_001);
  const calling = peer.trajectories.appendStep({}, { timeoutMs: 1000 }).catch((error: unknown) => error);
  vi.advanceTimersByTime(1000);
  expect(await calling).toMatchObject({ code: Code.DeadlineExceeded });
});
