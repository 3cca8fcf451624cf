import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { WatchPace } from '../../src/stream/watch_pace.ts';

describe('the pace of a watcher', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  const SETTINGS = { watchMs: 250, pollMs: 1000, progressMs: 15_000 };

  /** Advances the clock until the pace resolves. Returns how long that took. */
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

  it('M5: reads on a notification, but at most every 250 ms after the last message, however many arrive', async () => {
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

  it('M5: a notification that arrives during a read is not lost', async () => {
    const pace = new WatchPace({ ...SETTINGS, pollMs: 3_600_000 });
    pace.look();
    pace.hint();
    expect(await waited(pace)).toBe(250);
    pace.stop();
  });

  it('M5: reads every second without notifications, and sends a sign of progress well before 15 s', async () => {
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

  it('stops all waits once it has ended, including later ones', async () => {
    const pace = new WatchPace(SETTINGS);
    const waiting = pace.next();
    pace.end();
    await waiting;
    await pace.next();
    pace.stop();
    expect(vi.getTimerCount()).toBe(0);
  });
});
