import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { WatchPace } from '../../src/stream/watch_pace.ts';

describe('the pace of a watcher', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  const SETTINGS = { watchMs: 250, pollMs: 1000, progressMs: 15_000 };

  /** Goes on in time until the pace says so; how long that took. */
  async function waited(pace: WatchPace, atMost = 60_000): Promise<number> {
    let done = false;
    void pace.next().then(() => {
      done = true;
    });
    for (let ms = 0; ms <= atMost; ms += 10) {
      await vi.advanceTimersByTimeAsync(ms === 0 ? 0 : 10);
      if (done) return ms;
    }
    throw new Error(`nothing came in ${atMost} ms`);
  }

  it('M5: looks at a hint, but never sooner than 250 ms after what was told last, however many come', async () => {
    const pace = new WatchPace(SETTINGS);
    pace.look();
    for (let i = 0; i < 100; i += 1) pace.hint();
    expect(await waited(pace)).toBe(250);
    pace.look();
    const next = pace.next();
    await vi.advanceTimersByTimeAsync(300);
    pace.hint(); // long after: at once
    await next;
    pace.stop();
  });

  it('M5: a hint that comes while it looks is not lost', async () => {
    const pace = new WatchPace({ ...SETTINGS, pollMs: 3_600_000 });
    pace.look();
    pace.hint();
    expect(await waited(pace)).toBe(250);
    pace.stop();
  });

  it('M5: looks every second without any hint, and is due to say so well before 15 s', async () => {
    const pace = new WatchPace(SETTINGS);
    let silent = 0;
    while (!pace.markDue) {
      pace.look();
      silent += await waited(pace);
    }
    expect(silent).toBeGreaterThan(10_000);
    expect(silent).toBeLessThan(15_000);
    pace.told();
    expect(pace.markDue).toBe(false);
    pace.stop();
  });

  it('waits no more once it is ended, whoever waits or comes to wait', async () => {
    const pace = new WatchPace(SETTINGS);
    const waiting = pace.next();
    pace.end();
    await waiting;
    await pace.next();
    pace.stop();
    expect(vi.getTimerCount()).toBe(0);
  });
});
