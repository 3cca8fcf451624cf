import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { MessageTimeoutError, type UnfinishedMessage, UnfinishedMessages } from '../../src/listen/unfinished.ts';

const LARGEST = 10;
const LIMITS = { messageMs: 30_000, unfinishedBytesPerConnection: 30, unfinishedBytes: 70, smallMessageBytes: 0 };
const failed = (): void => {
  throw new Error('gave up');
};

// A test that leaves a message unfinished would cause a time-out in a later test of this process.
beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date', 'performance'] }));
afterEach(() => void vi.useRealTimers());

/** Reserves this many bytes. Returns whether there was room. */
function hold(message: UnfinishedMessage, bytes: number): { waits: boolean } {
  const reservation = { waits: false };
  const room = message.hold(bytes);
  if (room !== undefined) {
    reservation.waits = true;
    void room.then(() => (reservation.waits = false));
  }
  return reservation;
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

describe('MS2: the bytes of unfinished messages', () => {
  it('have a bound per connection, which keeps room for one whole message', async () => {
    const all = new UnfinishedMessages(LIMITS, LARGEST);
    const connection = {};
    const messages = Array.from({ length: 5 }, () => all.ofRequest(connection, failed));
    const [first, second, third, fourth, fifth] = messages as [
      UnfinishedMessage,
      UnfinishedMessage,
      UnfinishedMessage,
      UnfinishedMessage,
      UnfinishedMessage,
    ];
    expect(hold(first, 10)).toEqual({ waits: false });
    expect(hold(second, 10)).toEqual({ waits: false });
    expect(hold(third, 9), 'one message may go on at the bound').toEqual({ waits: false });
    const [waiting, behind] = [hold(fourth, 5), hold(fifth, 5)];
    expect(hold(third, 10), 'until it is complete').toEqual({ waits: false });
    expect([waiting, behind]).toEqual([{ waits: true }, { waits: true }]);
    expect(all.bytes).toBe(30);
    third.end();
    await settled();
    expect([waiting, behind], 'then the next one may').toEqual([{ waits: false }, { waits: true }]);
    expect(hold(all.ofRequest({}, failed), 10), 'other connections are not concerned').toEqual({ waits: false });
    first.end();
    await settled();
    expect(behind).toEqual({ waits: false });
    for (const message of messages) message.end();
    expect(all.bytes).toBe(10);
  });

  it('have a bound per principal, which leaves room for the others, and for one whole message', async () => {
    const all = new UnfinishedMessages(LIMITS, LARGEST);
    const messageOf = (principal: string) => {
      const message = all.ofRequest({}, failed);
      message.principal = principal;
      return message;
    };
    const many = Array.from({ length: 7 }, () => messageOf('many'));
    // 7/8 of 60 bytes, and one message.
    const held = many.map((message) => hold(message, 10));
    expect(held.map(({ waits }) => waits)).toEqual([false, false, false, false, false, false, true]);
    expect(hold(messageOf('one'), 5), 'another principal does not wait').toEqual({ waits: false });
    expect(all.bytes).toBe(65);
    many[0]!.end();
    await settled();
    expect(held[6]).toEqual({ waits: false });
    for (const message of many) message.end();
    expect(all.bytes).toBe(5);
    expect(hold(messageOf('many'), 10), 'nothing of it is left').toEqual({ waits: false });
  });

  it('have a bound for all connections, which keeps room for one whole message', async () => {
    const all = new UnfinishedMessages(LIMITS, LARGEST);
    const messages = Array.from({ length: 8 }, () => all.ofRequest({}, failed));
    const reservations = messages.map((message) => hold(message, 10));
    expect(reservations.map(({ waits }) => waits)).toEqual([false, false, false, false, false, false, false, true]);
    expect(all.bytes).toBe(70);
    messages[0]?.end();
    await settled();
    expect(reservations[7]).toEqual({ waits: false });
  });

  it('a message that ends while it waits leaves the queue', async () => {
    const all = new UnfinishedMessages(LIMITS, LARGEST);
    const connection = {};
    const messages = Array.from({ length: 4 }, () => all.ofRequest(connection, failed));
    const reservations = messages.map((message) => hold(message, 10));
    expect(reservations[3]).toEqual({ waits: true });
    messages[3]?.end();
    await settled();
    expect(reservations[3], 'its reader continues').toEqual({ waits: false });
    for (const message of messages) message.end();
    expect(all.bytes).toBe(0);
  });

  it('never delay small messages, which count only where there is room', () => {
    for (const connections of [1, 7]) {
      const all = new UnfinishedMessages({ ...LIMITS, smallMessageBytes: 4 }, LARGEST);
      const shared = {};
      const unfinished = () => all.ofRequest(connections === 1 ? shared : {}, failed);
      const full = connections === 1 ? LIMITS.unfinishedBytesPerConnection : LIMITS.unfinishedBytes;
      const large = Array.from({ length: full / LARGEST }, unfinished);
      for (const message of large) expect(message.hold(LARGEST)).toBeUndefined();
      expect(all.bytes).toBe(full);

      const small = Array.from({ length: 100 }, unfinished);
      for (const message of small) expect([message.hold(1), message.hold(4)]).toEqual([undefined, undefined]);
      expect(all.bytes, 'no room is left').toBe(full);
      const reservation = hold(small[0]!, 5);
      expect(reservation, 'no longer small').toEqual({ waits: true });

      for (const message of [...large, ...small.slice(1)]) message.end();
      expect(all.bytes, 'counted once there was room').toBe(5);
      small[0]!.end();
      expect(all.bytes).toBe(0);
    }
  });

  it('never keep messages that arrive concurrently from becoming complete', () => {
    const arrivals = fc.array(
      fc.record({ connection: fc.nat({ max: 4 }), bytes: fc.integer({ min: 1, max: LARGEST }) }),
      { maxLength: 40 },
    );
    fc.assert(
      fc.property(arrivals, fc.infiniteStream(fc.nat()), fc.nat({ max: 5 }), (sizes, random, smallMessageBytes) => {
        const all = new UnfinishedMessages({ ...LIMITS, smallMessageBytes }, LARGEST);
        const connections = Array.from({ length: 5 }, () => ({}));
        const open = sizes.map(({ connection, bytes }) => ({
          message: all.ofRequest(connections[connection]!, failed),
          bytes,
          connection,
        }));
        while (open.length > 0) {
          const reading = open.filter(
            ({ message: { heldBytes, countedBytes } }) => heldBytes === countedBytes || heldBytes <= smallMessageBytes,
          );
          expect(reading.length, 'messages whose reading continues').toBeGreaterThan(0);
          const one = reading[random.next().value! % reading.length]!;
          if (one.message.heldBytes < one.bytes) void one.message.hold(one.message.heldBytes + 1);
          else {
            one.message.end();
            open.splice(open.indexOf(one), 1);
          }
          expect(all.bytes).toBeLessThanOrEqual(LIMITS.unfinishedBytes);
          for (const connection of connections.keys()) {
            const held = open.filter((other) => other.connection === connection);
            const counted = held.reduce((sum, { message }) => sum + message.countedBytes, 0);
            expect(counted).toBeLessThanOrEqual(LIMITS.unfinishedBytesPerConnection);
          }
        }
        expect(all.bytes).toBe(0);
      }),
    );
  });
});

describe('MS2: the time of unfinished messages', () => {
  it('ends a fixed time after the first byte of each message, however many bytes followed', () => {
    const all = new UnfinishedMessages(LIMITS, LARGEST);
    const ended: [string, MessageTimeoutError][] = [];
    const message = (name: string) => all.ofRequest({}, (error) => ended.push([name, error]));
    const [first, second] = [message('first'), message('second')];
    void first.hold(1);
    vi.advanceTimersByTime(20_000);
    void second.hold(1);
    void first.hold(2);
    vi.advanceTimersByTime(9_999);
    expect(ended).toEqual([]);
    vi.advanceTimersByTime(1);
    expect(ended.map(([name]) => name)).toEqual(['first']);
    expect(ended[0]?.[1]).toBeInstanceOf(MessageTimeoutError);
    expect(ended[0]?.[1].message).toContain('30 s after its first byte: 2 bytes');
    vi.advanceTimersByTime(20_000);
    expect(ended.map(([name]) => name)).toEqual(['first', 'second']);
    expect(all.bytes).toBe(0);
    expect(vi.getTimerCount()).toBe(0);
  });

  it('starts again with each message of a request', () => {
    const all = new UnfinishedMessages(LIMITS, LARGEST);
    const message = all.ofRequest({}, failed);
    for (let i = 0; i < 5; i += 1) {
      void message.hold(1);
      vi.advanceTimersByTime(20_000);
      message.end();
    }
    vi.advanceTimersByTime(100_000);
    expect(all.bytes).toBe(0);
  });

  it('also ends for a message that waits for room, and its reader continues', async () => {
    const all = new UnfinishedMessages(LIMITS, LARGEST);
    const connection = {};
    const ended: number[] = [];
    const messages = Array.from({ length: 4 }, (_, i) => all.ofRequest(connection, () => ended.push(i)));
    const room = messages.map((message) => message.hold(10));
    vi.advanceTimersByTime(30_000);
    expect(ended).toEqual([0, 1, 2, 3]);
    await room[3];
    expect(all.bytes).toBe(0);
  });

  it('needs a single timer, however many messages there are', () => {
    const all = new UnfinishedMessages(LIMITS, 0);
    for (let i = 0; i < 50; i += 1) {
      const message = all.ofRequest({}, failed);
      void message.hold(1);
      vi.advanceTimersByTime(1);
      expect(vi.getTimerCount()).toBe(1);
      message.end();
    }
  });
});
