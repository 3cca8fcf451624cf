import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type Silence, SilenceWatch } from '../../src/store/postgres/silence.ts';

/** A connection as the silence check sees it. */
class FakeClient {
  silence: Silence | undefined;
  readonly processID: number | null;
  /** The address for cancel requests: nobody listens there. */
  readonly host = '127.0.0.1';
  readonly port = 1;
  readonly connectionParameters = {};
  readonly stream = {
    bytesRead: 0,
    bytesWritten: 0,
    writableLength: 0,
    destroy: (silence: Silence) => {
      this.silence = silence;
    },
  };
  readonly connection = { stream: this.stream };

  constructor(processID: number | null = null) {
    this.processID = processID;
  }

  hear(): void {
    this.stream.bytesRead += 1;
  }

  send(bytes: number, queued: number): void {
    this.stream.bytesWritten += bytes;
    this.stream.writableLength = queued;
  }
}

describe('silence of Postgres', () => {
  let watch: SilenceWatch;
  let findWorking: (processIds: readonly number[]) => Promise<readonly number[]>;
  beforeEach(() => {
    vi.useFakeTimers();
    watch = new SilenceWatch((processIds) => findWorking(processIds));
    findWorking = () => Promise.reject(new Error('no answer'));
  });
  afterEach(() => {
    watch.close();
    vi.useRealTimers();
  });

  /** Advances the clock. `each` is called before each silence check. */
  function pass(milliseconds: number, each: () => void = () => undefined): void {
    for (let at = 0; at < milliseconds; at += 250) {
      each();
      vi.advanceTimersByTime(250);
    }
  }

  function waiter(): { silence: Silence | undefined; stop: () => void } {
    const found: { silence: Silence | undefined; stop: () => void } = { silence: undefined, stop: () => undefined };
    found.stop = watch.wait((silence) => {
      found.silence = silence;
    });
    return found;
  }

  it('A1: a connection that receives nothing for 4.5 s is closed, counted from the last byte', () => {
    const client = new FakeClient();
    watch.watch(client);
    pass(3000);
    client.hear();
    pass(4500);
    expect(client.silence).toBeUndefined();
    pass(500);
    expect(client.silence).toMatchObject({ whole: true });
  });

  it('A1: a statement that the database is executing is not silence, however long it takes, alone and beside a waiter', async () => {
    findWorking = (processIds) => Promise.resolve(processIds);
    const client = new FakeClient(7);
    watch.watch(client);
    const waiting = waiter();
    for (let at = 0; at < 240; at += 1) await vi.advanceTimersByTimeAsync(250);
    expect([client.silence, waiting.silence]).toEqual([undefined, undefined]);
    findWorking = () => Promise.reject(new Error('no answer'));
    for (let at = 0; at < 30; at += 1) await vi.advanceTimersByTimeAsync(250);
    expect(client.silence).toMatchObject({ whole: true });
  });

  it('A1: a quiet connection without a running statement in the database is closed, even if it is the only one', async () => {
    findWorking = () => Promise.resolve([]);
    const client = new FakeClient(7);
    watch.watch(client);
    for (let at = 0; at < 19; at += 1) await vi.advanceTimersByTimeAsync(250);
    expect(client.silence).toMatchObject({ whole: false });
  });

  it('A1: one quiet connection beside others that answer is closed alone, and calls waiting for a connection keep waiting', () => {
    const [quiet, busy] = [new FakeClient(), new FakeClient()];
    watch.watch(quiet);
    watch.watch(busy);
    const waiting = waiter();
    pass(5000, () => busy.hear());
    expect(quiet.silence).toMatchObject({ whole: false });
    watch.unwatch(quiet);
    pass(60_000, () => busy.hear());
    expect([busy.silence, waiting.silence]).toEqual([undefined, undefined]);
  });

  it('A1: when all connections are quiet, older waiting calls fail too, and newer ones soon after', () => {
    const [first, second, third] = [new FakeClient(), new FakeClient(), new FakeClient()];
    watch.watch(first);
    pass(3000);
    watch.watch(second);
    const waiting = waiter();
    pass(1250);
    watch.watch(third);
    const late = waiter();
    pass(500);
    for (const { silence } of [first, second, waiting]) expect(silence).toMatchObject({ whole: true });
    expect([third.silence, late.silence]).toEqual([undefined, undefined]);
    pass(1000);
    expect([third.silence?.whole, late.silence?.whole]).toEqual([true, true]);
  });

  it('A1: short statements, each answered between two checks, are not silence', () => {
    const client = new FakeClient();
    const waiting = waiter();
    pass(60_000, () => {
      watch.watch(client);
      client.hear();
      watch.unwatch(client);
    });
    expect([client.silence, waiting.silence]).toEqual([undefined, undefined]);
  });

  it('A1: bytes received after a queue count as an answer; bytes that are only sent do not', () => {
    const [uploading, sending] = [new FakeClient(), new FakeClient()];
    watch.watch(uploading);
    watch.watch(sending);
    let queued = 4_000_000;
    uploading.send(queued, queued);
    pass(10_000, () => {
      queued -= 10_000;
      uploading.send(0, queued);
      sending.send(100, 0);
    });
    expect(uploading.silence).toBeUndefined();
    expect(sending.silence).toMatchObject({ whole: false });
  });

  it('A1: without waiting calls nothing counts as silence', () => {
    const client = new FakeClient();
    watch.watch(client);
    pass(4000);
    watch.unwatch(client);
    pass(60_000);
    watch.watch(client);
    pass(4000);
    expect(client.silence).toBeUndefined();
    const waiting = waiter();
    watch.unwatch(client);
    pass(250);
    waiting.stop();
    pass(60_000);
    expect(waiting.silence).toBeUndefined();
  });
});
