import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Pool } from '../../src/store/postgres/pool.ts';
import { type Silence, SilenceWatch } from '../../src/store/postgres/silence.ts';
import { createDatabase, type TestDatabase } from '../support/database.ts';

/** A connection as the watch sees it. */
class FakeClient {
  silence: Silence | undefined;
  readonly processID = null;
  readonly stream = {
    bytesRead: 0,
    bytesWritten: 0,
    writableLength: 0,
    destroy: (silence: Silence) => {
      this.silence = silence;
    },
  };
  readonly connection = { stream: this.stream };

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
  beforeEach(() => {
    vi.useFakeTimers();
    watch = new SilenceWatch();
  });
  afterEach(() => {
    watch.close();
    vi.useRealTimers();
  });

  /** Lets time go by; `each` is called before each look of the watch. */
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

  it('A1: a connection that hears nothing for 4.5 s is given up, counted from the last byte', () => {
    const client = new FakeClient();
    watch.watch(client);
    pass(3000);
    client.hear();
    pass(4500);
    expect(client.silence).toBeUndefined();
    pass(500);
    expect(client.silence).toMatchObject({ whole: true });
  });

  it('A1: one quiet connection beside others that answer is given up alone, and whoever waits for a connection waits on', () => {
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

  it('A1: when all are quiet, those that came a while ago are given up too, and those that just came soon after', () => {
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

  it('A1: short statements, each answered between two looks, are no silence', () => {
    const client = new FakeClient();
    const waiting = waiter();
    pass(60_000, () => {
      watch.watch(client);
      client.hear();
      watch.unwatch(client);
    });
    expect([client.silence, waiting.silence]).toEqual([undefined, undefined]);
  });

  it('A1: bytes that are taken from a queue are an answer, bytes that are merely sent are none', () => {
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

  it('A1: where nobody waits nothing counts as silence', () => {
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

describe('a busy Postgres', () => {
  let database: TestDatabase;
  let pool: Pool;
  beforeEach(async () => {
    database = await createDatabase('postgres');
    const onLost = () => undefined;
    pool = new Pool({ url: database.url, poolSize: 2, namedStatements: true, bounded: true, onLost });
  });
  afterEach(async () => {
    await pool?.end();
    await database?.drop();
  });

  it('A1: whoever waits for a connection longer than a silence lasts still gets it, as long as others get answers', async () => {
    const ends = await Promise.all(
      [1, 2, 3, 4, 5, 6, 7, 8].map(async (turn) => {
        const lease = await pool.lease();
        await lease.query('select pg_sleep(1.5)');
        lease.release();
        return turn;
      }),
    );
    expect(ends).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
  }, 60_000);

  it('A1: a statement that is given up beside others that are answered ends in the database too, and releases its locks', async () => {
    const endless = 'select pg_sleep(1000)';
    const lease = await pool.lease();
    let given: unknown;
    const giving = lease.query(endless).catch((error: unknown) => {
      given = error;
    });
    const runs = async (): Promise<boolean> => {
      const other = await pool.lease();
      const { rows } = await other.query(
        `select 1 from pg_stat_activity where query = '${endless}' and state = 'active'`,
      );
      other.release();
      return rows.length > 0;
    };
    while (!(await runs()));
    // Ends only if the statement does.
    while (await runs());
    await giving;
    lease.release();
    expect(given).toMatchObject({ reason: 'DATABASE_UNAVAILABLE', cause: { whole: false } });
  }, 60_000);
});
