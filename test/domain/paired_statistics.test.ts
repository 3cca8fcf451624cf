import { readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { mulberry32, percentileInterval, RESAMPLES, resampledMeans, signTest } from '../../src/domain/branch_pairs.ts';

interface Golden {
  readonly cases: readonly {
    readonly name: string;
    readonly values: readonly number[];
    readonly higher: number;
    readonly lower: number;
    readonly p: number;
    /** By confidence level: the least and the largest of each bound among the seeds of scipy. */
    readonly intervals: Readonly<Record<string, Readonly<Record<'low' | 'high', readonly [number, number]>>>>;
  }[];
}

/** The results of scipy, made by fixtures/paired_statistics.py. */
const { cases } = JSON.parse(
  readFileSync(path.join(import.meta.dirname, 'fixtures/paired_statistics.json'), 'utf8'),
) as Golden;

describe('statistics of paired differences', () => {
  it.each([
    [0, 0, 1],
    [0, 1, 1],
    [0, 5, 0.0625],
    [3, 10, 0.34375],
    [8, 10, 0.109375],
    [5, 10, 1],
    [7, 20, 0.26317596435546875],
    [40, 100, 0.05688793364098079],
    [450, 1000, 0.0017305360849763176],
    [4900, 10000, 0.04658552770494739],
    [13, 13, 0.000244140625],
  ])('RD11: the sign test of %i of %i has the p-value %d of scipy.stats.binomtest', (successes, trials, p) => {
    expect(Math.abs(signTest(successes, trials) / p - 1)).toBeLessThan(1e-11);
  });

  it('RD11: the generator is mulberry32', () => {
    const next = mulberry32(0);
    expect([next(), next(), next()]).toEqual([1144304738, 1416247, 958946056]);
  });

  it('RD11: an interval of the mean is close to that of the normal distribution, and is repeatable', () => {
    const values = Float64Array.from({ length: 200 }, (_, i) => ((i * 7919) % 200) / 10 - 4);
    const interval = (seed: number) => percentileInterval(Float64Array.from(resampledMeans(values, seed)), 0.95);
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
    const half = (1.959964 * deviation) / Math.sqrt(values.length);
    for (const seed of [0, 1, 4_294_967_295]) {
      const [low, high] = interval(seed);
      expect(Math.abs(mean - half - low)).toBeLessThan(0.05 * half);
      expect(Math.abs(mean + half - high)).toBeLessThan(0.05 * half);
    }
    expect(interval(3)).toEqual(interval(3));
    expect([...resampledMeans(Float64Array.of(2), 0)]).toEqual(Array.from({ length: RESAMPLES }, () => 2));
  });

  it.each(cases)('RD11: intervals and sign test of $name are those of scipy, within 2 % of the width', (golden) => {
    const { values, higher, lower, p, intervals } = golden;
    const means = Float64Array.from(resampledMeans(Float64Array.from(values), 0));
    for (const [confidence, { low, high }] of Object.entries(intervals)) {
      const [foundLow, foundHigh] = percentileInterval(means, Number(confidence));
      const near = 0.02 * (high[1] - low[0]);
      for (const [found, [least, most]] of [[foundLow, low] as const, [foundHigh, high] as const]) {
        expect(found, `at ${confidence}`).toBeGreaterThan(least - near);
        expect(found, `at ${confidence}`).toBeLessThan(most + near);
      }
    }
    expect(Math.abs(signTest(higher, higher + lower) / p - 1)).toBeLessThan(1e-11);
  });
});
