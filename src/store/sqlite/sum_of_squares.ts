import type { DatabaseSync } from 'node:sqlite';

/** SQL function that returns the sum of squared deviations from the mean. */
export const SQUARES = 'anabranch_squares';

/**
 * Adds the aggregate for variances, which SQLite lacks. Uses Welford's moving mean over the differences from the first
 * value, so that large values close to each other lose no precision.
 */
export function addAggregates(database: DatabaseSync): void {
  database.aggregate<Float64Array>(SQUARES, {
    deterministic: true,
    start: () => new Float64Array(4),
    step(sums, value) {
      if (typeof value !== 'number') return sums;
      const [count = 0, mean = 0, squares = 0] = sums;
      if (count === 0) sums[3] = value;
      const from = value - (sums[3] ?? 0);
      const moved = mean + (from - mean) / (count + 1);
      sums[0] = count + 1;
      sums[1] = moved;
      sums[2] = squares + (from - mean) * (from - moved);
      return sums;
    },
    result: ([count = 0, , squares = 0]) => (count === 0 ? null : squares),
  });
}
