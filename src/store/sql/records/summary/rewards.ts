import { type RawBuilder, sql } from 'kysely';
import type { SummaryRow } from '../../../../domain/summary.ts';
import { type Aggregates, IMMENSE_SUM } from '../../kit/expressions.ts';
import { readReal } from '../../kit/values.ts';
import { combinationOf, type ValueColumns } from './combinations.ts';

type Rewards = SummaryRow['rewards'];

export interface RewardColumns extends ValueColumns {
  readonly rewards: bigint;
  /** Number of rewards that are too large for the other columns. */
  readonly immense: bigint;
  readonly reward_sum: number | null;
  readonly reward_min: number | null;
  readonly reward_max: number | null;
  readonly reward_squares: number | null;
  readonly reward_median: number | null;
}

/**
 * Selects the columns of rewards. `x` is a reward below the limit, else null. `rewarded` is not null for any number.
 */
export function rewardColumns(
  { median, squares }: Aggregates,
  x: RawBuilder<unknown>,
  rewarded: RawBuilder<unknown>,
): RawBuilder<unknown> {
  return sql`count(${x}) as rewards, count(${rewarded}) - count(${x}) as immense, sum(${x}) as reward_sum,
    min(${x}) as reward_min, max(${x}) as reward_max, ${squares(x)} as reward_squares, ${median(x)} as reward_median`;
}

function readRewards(row: RewardColumns): Rewards {
  return {
    count: row.rewards,
    sum: readReal(row.reward_sum ?? 0),
    min: readReal(row.reward_min ?? 0),
    max: readReal(row.reward_max ?? 0),
    squares: readReal(row.reward_squares ?? 0),
    median: readReal(row.reward_median ?? 0),
  };
}

/** One reward with the values of its combination. */
export interface RewardRow extends ValueColumns {
  readonly reward: number | string;
}

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

/**
 * Returns the rewards of each of the combinations. If some are too large for the columns, `readAll` returns the rewards
 * of all combinations one by one.
 */
export async function rewardsOf(
  rows: readonly RewardColumns[],
  count: number,
  readAll: () => Promise<readonly RewardRow[]>,
): Promise<readonly Rewards[]> {
  if (rows.every(({ immense }) => immense === 0n)) return rows.map(readRewards);
  const all = Map.groupBy(await readAll(), (row) => combinationOf(row, count));
  return rows.map((row) => momentsOf((all.get(combinationOf(row, count)) ?? []).map(({ reward }) => readReal(reward))));
}

/** Returns a sum of numbers within the limit. A number beyond it makes the sum infinite. */
export function boundedSum(total: number | null, least: number | null, most: number | null): number {
  const low = least === null || least > -IMMENSE_SUM ? 0 : Number.NEGATIVE_INFINITY;
  const high = most === null || most < IMMENSE_SUM ? 0 : Number.POSITIVE_INFINITY;
  return readReal(total ?? 0) + low + high;
}
