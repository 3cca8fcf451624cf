import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isPaused, type Pause, pausedTime, pausesAfter } from '../../src/domain/lease.ts';
import type { Status } from '../../src/domain/lifecycle.ts';

/** The pauses of a run that is paused and resumed alternately at these times. */
function pausedAt(...times: readonly bigint[]): readonly Pause[] {
  return times.reduce<readonly Pause[]>(
    (pauses, time, i) => (i % 2 === 0 ? pausesAfter(pauses, 'RUNNING', 'PAUSED', time) : resumed(pauses, time)),
    [],
  );
}

function resumed(pauses: readonly Pause[], time: bigint, to: Status = 'RUNNING'): readonly Pause[] {
  return pausesAfter(pauses, 'PAUSED', to, time);
}

describe('the paused time of a run', () => {
  it('counts all pauses that started before a time, including the current one up to that time', () => {
    const pauses = pausedAt(100n, 150n, 200n);
    expect([50n, 100n, 120n, 150n, 170n, 200n, 260n].map((time) => pausedTime(pauses, time))).toEqual([
      ...[0n, 0n, 20n, 50n, 50n, 50n, 110n],
    ]);
    expect(isPaused(pauses)).toBe(true);
    expect(isPaused(resumed(pauses, 300n))).toBe(false);
    expect(pausedTime(resumed(pauses, 300n))).toBe(150n);
  });

  it.each(['RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED'] as const)('a pause ends when the run becomes %s', (to) => {
    expect(resumed(pausedAt(100n), 130n, to)).toEqual([{ start: 100n, end: 130n }]);
  });

  it('other verbs of a run leave its pauses unchanged', () => {
    const pauses = pausedAt(100n, 150n);
    expect(pausesAfter(pauses, 'RUNNING', 'COMPLETED', 200n)).toEqual(pauses);
    expect(pausesAfter(pauses, 'COMPLETED', 'RUNNING', 200n)).toEqual(pauses);
  });

  it('a clock that goes backwards gives a pause of length 0', () => {
    expect(pausedTime(pausedAt(100n, 90n), 200n)).toBe(0n);
  });

  it('keeps 100 pauses, and only the total of older ones, so that no later time is counted differently', () => {
    const gaps = fc.array(fc.bigInt({ min: 1n, max: 1000n }), { minLength: 400, maxLength: 600 });
    fc.assert(
      fc.property(gaps, (lengths) => {
        let time = 0n;
        const times = lengths.slice(0, lengths.length & ~1).map((length) => (time += length));
        const kept = pausedAt(...times);
        const all = Array.from({ length: times.length / 2 }, (_, i) => ({
          start: times[2 * i]!,
          end: times[2 * i + 1],
        }));
        expect(kept).toHaveLength(100);
        for (const at of [...times.slice(-190), time + 5n]) expect(pausedTime(kept, at)).toBe(pausedTime(all, at));
      }),
      { numRuns: 20 },
    );
  });
});
