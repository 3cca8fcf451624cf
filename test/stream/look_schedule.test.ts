import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ChangeHub } from '../../src/stream/change_hub.ts';
import { LookSchedule } from '../../src/stream/look_schedule.ts';
import { QUIET_CHANGES } from '../support/quiet_changes.ts';

describe('the schedule of looks', () => {
  let changes: ChangeHub;
  beforeEach(() => {
    vi.useFakeTimers();
    changes = new ChangeHub(QUIET_CHANGES, SETTINGS);
  });
  afterEach(() => {
    changes.close();
    expect(vi.getTimerCount()).toBe(0);
    vi.useRealTimers();
  });

  const SETTINGS = { watchMs: 250, pollMs: 1000, progressMs: 15_000 };

  /** Advances the clock until the schedule resolves. Returns how long that took. */
  async function waited(schedule: LookSchedule, atMost = 60_000): Promise<number> {
    let done = false;
    void schedule.nextLook().then(() => {
      done = true;
    });
    for (let ms = 0; ms <= atMost; ms += 10) {
      await vi.advanceTimersByTimeAsync(ms === 0 ? 0 : 10);
      if (done) return ms;
    }
    throw new Error(`nothing came in ${atMost} ms`);
  }

  it('M5: reads on a notification, but at most every 250 ms after the last message, however many arrive', async () => {
    const schedule = new LookSchedule(changes, SETTINGS);
    schedule.beginLook();
    for (let i = 0; i < 100; i += 1) schedule.hint();
    expect(await waited(schedule)).toBe(250);
    schedule.beginLook();
    const next = schedule.nextLook();
    await vi.advanceTimersByTimeAsync(300);
    schedule.hint(); // long after: at once
    await next;
    schedule.stop();
  });

  it('M5: a notification that arrives during a read is not lost', async () => {
    const schedule = new LookSchedule(changes, SETTINGS);
    schedule.beginLook();
    schedule.hint();
    expect(await waited(schedule)).toBe(250);
    schedule.stop();
  });

  it('M5: does not read without notifications, and sends a sign of life well before 15 s', async () => {
    const schedule = new LookSchedule(changes, SETTINGS);
    const begun = Date.now();
    while (!schedule.progressDue) {
      const isLook = schedule.nextLookOrTick();
      await vi.advanceTimersByTimeAsync(SETTINGS.pollMs);
      expect(await isLook).toBe(false);
    }
    const silent = Date.now() - begun;
    expect(silent).toBeGreaterThan(10_000);
    expect(silent).toBeLessThan(15_000);
    schedule.sent();
    expect(schedule.progressDue).toBe(false);
    schedule.stop();
  });

  it('stops all waits once it has ended, including later ones', async () => {
    const schedule = new LookSchedule(changes, SETTINGS);
    const waiting = schedule.nextLook();
    schedule.end();
    await waiting;
    await schedule.nextLook();
    schedule.stop();
  });
});
