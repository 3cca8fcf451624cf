import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ANNOUNCE_MS, Announcements } from '../../page/src/announcements.ts';

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

describe('announcements', () => {
  it('are made at most every 10 seconds, of the newest text only, and not of the first', () => {
    const said: string[] = [];
    const announcements = new Announcements((text) => said.push(text));
    announcements.change('1 trajectory');
    expect(said).toEqual([]);
    announcements.change('2 trajectories');
    expect(said).toEqual(['2 trajectories']);
    for (let count = 3; count < 100; count += 1) {
      announcements.change(`${count} trajectories`);
      vi.advanceTimersByTime(ANNOUNCE_MS / 100 - 1);
    }
    expect(said).toEqual(['2 trajectories']);
    vi.advanceTimersByTime(ANNOUNCE_MS);
    expect(said).toEqual(['2 trajectories', '99 trajectories']);
    vi.advanceTimersByTime(10 * ANNOUNCE_MS);
    expect(said).toHaveLength(2);
    announcements.change('100 trajectories');
    expect(said.at(-1)).toBe('100 trajectories');
    announcements.change('101 trajectories');
    announcements.end();
    vi.advanceTimersByTime(10 * ANNOUNCE_MS);
    expect(said.at(-1)).toBe('100 trajectories');
  });
});
