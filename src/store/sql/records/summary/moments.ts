import type { SummaryRow } from '../../../../domain/summary.ts';

export type Rewards = SummaryRow['rewards'];

/** Computes the statistics that engines compute in SQL. Accepts any numbers but NaN, and any magnitude. */
export function momentsOf(rewards: readonly number[]): Rewards {
  const sorted = Float64Array.from(rewards).sort();
  const count = sorted.length;
  if (count === 0) return { count: 0n, sum: 0, min: 0, max: 0, squares: 0, median: 0 };
  const sum = sorted.reduce((total, reward) => total + reward, 0);
  const squares = sorted.reduce((total, reward) => total + (reward - sum / count) ** 2, 0);
  const [below, above] = [sorted[(count - 1) >> 1] ?? 0, sorted[count >> 1] ?? 0];
  return {
    count: BigInt(count),
    sum,
    min: sorted[0] ?? 0,
    max: sorted[count - 1] ?? 0,
    squares,
    // Halved before the addition, which could overflow.
    median: below === above ? below : below / 2 + above / 2,
  };
}
