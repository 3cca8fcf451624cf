import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { rangesOver } from '../../src/store/sql/log/read/number_ranges.ts';

describe('ranges over numbers', () => {
  it('contain every number once, in order, with bounded length each and little more', () => {
    const numbers = fc.array(fc.oneof(fc.bigInt(0n, 300n), fc.bigInt(0n, 2n ** 62n)), { maxLength: 200 });
    fc.assert(
      fc.property(numbers, (wanted) => {
        const ranges = rangesOver(wanted);
        for (const number of wanted) expect(ranges.some(({ from, to }) => from <= number && number < to)).toBe(true);
        for (const [i, { from, to }] of ranges.entries()) {
          expect(wanted).toContain(from);
          expect(wanted).toContain(to - 1n);
          expect(to - from).toBeLessThanOrEqual(10_000n);
          if (i > 0) expect(from >= (ranges[i - 1] as (typeof ranges)[number]).to).toBe(true);
        }
      }),
    );
  });

  it('W2: a replay of numbers without gaps is one range, a long one a few', () => {
    const from = 2n ** 53n;
    const run = (length: number) => Array.from({ length }, (_, i) => from + BigInt(i));
    expect(rangesOver(run(5))).toEqual([{ from, to: from + 5n }]);
    expect(rangesOver(run(5).reverse())).toEqual([{ from, to: from + 5n }]);
    expect(rangesOver(run(25_000))).toHaveLength(3);
    expect(rangesOver([])).toEqual([]);
    expect(rangesOver([1n, 1_000_000n])).toHaveLength(2);
  });
});
