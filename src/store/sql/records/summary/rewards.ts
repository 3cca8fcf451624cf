import { type RawBuilder, sql } from 'kysely';
import { type Aggregates, IMMENSE_SUM } from '../../kit/aggregates.ts';
import { readReal } from '../../kit/values.ts';
import { momentsOf, type Rewards } from './moments.ts';
import { combinationOf, type ValueColumns } from './values.ts';

export interface RewardColumns {
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

export function readRewards(row: RewardColumns): Rewards {
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

/** Returns the rewards of each combination, computed from all rewards one by one. */
export function rewardsByCombination(rows: readonly RewardRow[], count: number): Map<string, Rewards> {
  const byCombination = Map.groupBy(rows, (row) => combinationOf(row, count));
  return new Map(
    [...byCombination].map(([key, found]) => [key, momentsOf(found.map(({ reward }) => readReal(reward)))]),
  );
}

/** Returns a sum of numbers within the limit. A number beyond it makes the sum infinite. */
export function boundedSum(total: number | null, least: number | null, most: number | null): number {
  const low = least === null || least > -IMMENSE_SUM ? 0 : Number.NEGATIVE_INFINITY;
  const high = most === null || most < IMMENSE_SUM ? 0 : Number.POSITIVE_INFINITY;
  return readReal(total ?? 0) + low + high;
}
