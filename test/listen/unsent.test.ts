import { EventEmitter } from 'node:events';
import type { Http2ServerResponse, Http2Session, ServerHttp2Stream } from 'node:http2';
import { setImmediate as nextIteration } from 'node:timers/promises';
import { beforeEach, describe, expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import { isLarge, UnreadError, UnsentMessages } from '../../src/listen/unsent.ts';

const ALL = LIMITS.unsentBytesPerConnection;

let unsent: UnsentMessages;
let session: Http2Session;
beforeEach(() => {
  unsent = new UnsentMessages(ALL, 4 * ALL);
  session = {} as Http2Session;
});

function streamOf(connection: Http2Session): ServerHttp2Stream {
  return Object.assign(new EventEmitter(), { session: connection, closed: false }) as unknown as ServerHttp2Stream;
}

/** A message that waits for room, or has reserved it. */
function message(bytes: number, stream = streamOf(session)) {
  const entry = { stream, inside: false, leave: () => {} };
  void unsent.enter(stream, bytes).then((leave) => Object.assign(entry, { inside: true, leave }));
  return entry;
}

describe('A8: large messages of one connection that are not sent', () => {
  it('wait in order of arrival while there is no room', async () => {
    const first = message(ALL / 2);
    const second = message(ALL / 2);
    const third = message(ALL / 2 + 1);
    const fourth = message(1);
    await nextIteration();
    expect([first, second, third, fourth].map(({ inside }) => inside)).toEqual([true, true, false, false]);
    first.leave();
    await nextIteration();
    expect([third.inside, fourth.inside]).toEqual([false, false]);
    second.leave();
    second.leave();
    await nextIteration();
    expect([third.inside, fourth.inside]).toEqual([true, true]);
  });

  it('are admitted alone if they are larger than the whole limit', async () => {
    const huge = message(ALL * 2);
    const next = message(1);
    await nextIteration();
    expect([huge.inside, next.inside]).toEqual([true, false]);
    huge.leave();
    await nextIteration();
    expect(next.inside).toBe(true);
  });

  it('release their room, and stop waiting, when their stream closes', async () => {
    const first = message(ALL);
    const second = message(ALL);
    const third = message(ALL);
    await nextIteration();
    second.stream.emit('close');
    first.stream.emit('close');
    await nextIteration();
    expect([second.inside, third.inside]).toEqual([true, true]);
  });

  it('do not wait for those of another connection, nor after their own connection has ended', async () => {
    message(ALL);
    const other = message(ALL, streamOf({} as Http2Session));
    const over = message(ALL, Object.assign(streamOf(session), { closed: true }));
    await nextIteration();
    expect([other.inside, over.inside]).toEqual([true, true]);
  });

  it('fail beyond a bound, so that the server need not keep them, until earlier ones have left', async () => {
    const first = message(ALL);
    const waiting = [1, 2, 3, 4].map(() => message(ALL));
    await expect(unsent.enter(streamOf(session), 1)).rejects.toThrow(UnreadError);
    waiting[3]?.stream.emit('close');
    const last = message(ALL);
    await expect(unsent.enter(streamOf(session), 1)).rejects.toThrow(UnreadError);
    first.leave();
    await nextIteration();
    first.stream.emit('close');
    for (const each of [...waiting.slice(0, 3), last]) {
      await nextIteration();
      expect(each.inside).toBe(true);
      each.leave();
    }
  });

  it('do not delay small messages', async () => {
    message(ALL);
    const response = { stream: streamOf(session) } as unknown as Http2ServerResponse;
    async function* chunks() {
      yield Buffer.alloc(128 * 1024);
    }
    const paced = unsent.paced(chunks(), response);
    expect(isLarge(Buffer.alloc(128 * 1024))).toBe(false);
    expect((await paced.next()).value).toHaveLength(128 * 1024);
    expect((await paced.next()).done).toBe(true);
  });

  it('release their room when the reader of an answer leaves', async () => {
    const response = { stream: streamOf(session) } as unknown as Http2ServerResponse;
    async function* chunks() {
      yield Buffer.alloc(ALL);
      yield Buffer.alloc(ALL);
    }
    const paced = unsent.paced(chunks(), response);
    await paced.next();
    const next = message(ALL);
    await nextIteration();
    expect(next.inside).toBe(false);
    await paced.return?.();
    await nextIteration();
    expect(next.inside).toBe(true);
  });
});
