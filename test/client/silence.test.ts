import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Silence } from '../../src/client/silence.ts';

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

describe('Silence', () => {
  it('C2: reports silence if timers are numbers and setImmediate is missing, as in a browser', async () => {
    vi.stubGlobal('setImmediate', undefined);
    const { setTimeout: start, clearTimeout: stop } = globalThis;
    const timers = new Map<number, NodeJS.Timeout>();
    vi.stubGlobal('setTimeout', (work: () => void, ms?: number) => {
      timers.set(timers.size + 1, start(work, ms));
      return timers.size;
    });
    vi.stubGlobal('clearTimeout', (id: number) => stop(timers.get(id)));
    const error = await new Promise<Error>((resolve) => new Silence(200, resolve).expect());
    expect(error.message).toContain('the server sent nothing for 0.2 s');
  });

  describe('on a clock of the test', () => {
    const reports: string[] = [];
    const silence = () => new Silence(500, ({ message }) => reports.push(message));
    /** How long the caller has blocked the event loop. */
    let blockedMs = 0;

    beforeEach(() => {
      vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
      const now = performance.now.bind(performance);
      blockedMs = 0;
      vi.spyOn(performance, 'now').mockImplementation(() => now() + blockedMs);
      reports.length = 0;
    });

    it('W12: a caller that blocks the event loop for longer is not mistaken for a silent server', () => {
      silence().expect();
      blockedMs = 800;
      // The timer fires 800 ms late. From then on, the server has the whole time.
      vi.advanceTimersByTime(990);
      expect(reports).toEqual([]);
      vi.advanceTimersByTime(20);
      expect(reports).toEqual([expect.stringContaining('the server sent nothing for 0.5 s')]);
    });

    it('W12: an answer that is unread when the time ends is read before silence is reported', () => {
      const waiting = silence();
      waiting.expect();
      vi.advanceTimersToNextTimer();
      waiting.pause();
      vi.advanceTimersByTime(10_000);
      expect(reports).toEqual([]);
    });
  });
});
