import { addReward } from '../../../domain/step.ts';
import type { SegmentRow } from './tables/steps.ts';
import type { RowOf } from './tables/table.ts';
import type { TRAJECTORIES } from './tables/trajectories.ts';
import { bindOptionalReal, bindReal, readReal } from './values.ts';

/** Running sums of a trajectory after a step. */
export interface Sums {
  /** Along the lineage. */
  readonly rewardSum: number;
  /** Of own steps alone. Undefined while none of them has a reward that counts. */
  readonly branchRewardSum: number | undefined;
  /** Smallest and largest reward of own steps, NaN aside. Undefined while there is none. */
  readonly minReward: number | undefined;
  readonly maxReward: number | undefined;
  /** Bytes of the segments along the lineage. */
  readonly byteSum: bigint;
  /** Own steps after step 0 that have both times, and their duration. */
  readonly timedTurns: bigint;
  readonly turnSeconds: number;
}

/** The sums of a new root. */
export const NO_SUMS: Sums = {
  rewardSum: 0,
  branchRewardSum: undefined,
  minReward: undefined,
  maxReward: undefined,
  byteSum: 0n,
  timedTurns: 0n,
  turnSeconds: 0,
};

/** Returns the sums before a row as far as the row has them: those along the lineage. */
export function sumsBefore({ reward_sum, byte_sum }: Pick<SegmentRow, 'reward_sum' | 'byte_sum'>): Sums {
  return { ...NO_SUMS, rewardSum: readReal(reward_sum), byteSum: byte_sum };
}

/** Returns the columns of `trajectories` that hold the sums. */
export function sumColumns(sums: Sums) {
  return {
    reward_sum: bindReal(sums.rewardSum),
    branch_reward_sum: bindOptionalReal(sums.branchRewardSum),
    min_reward: bindOptionalReal(sums.minReward),
    max_reward: bindOptionalReal(sums.maxReward),
    byte_sum: sums.byteSum,
    timed_turns: sums.timedTurns,
    turn_seconds: sums.turnSeconds,
  } satisfies Partial<RowOf<typeof TRAJECTORIES>>;
}

/** Returns the smaller of a bound and a reward. NaN and missing rewards do not count. */
export function smallerReward(bound: number | undefined, reward: number | undefined): number | undefined {
  if (reward === undefined || Number.isNaN(reward)) return bound;
  return bound === undefined || reward < bound ? reward : bound;
}

/** Returns the larger of a bound and a reward. NaN and missing rewards do not count. */
export function largerReward(bound: number | undefined, reward: number | undefined): number | undefined {
  if (reward === undefined || Number.isNaN(reward)) return bound;
  return bound === undefined || reward > bound ? reward : bound;
}

/** Bytes that a step adds to `byte_sum` besides its encoding, so that pages of small steps are bounded too. */
export const STEP_BYTES = 64;

/** What the sums at the steps of a segment are computed from. */
export interface SegmentSums {
  readonly first_step_number: bigint;
  readonly next_step_number: bigint;
  readonly rewards: string;
  readonly reward_sum: number | string;
  readonly byte_sum: bigint;
  readonly body_bytes: bigint | number;
}

/**
 * Returns the sums with which a branch at a step of a segment begins. A reader of the branch reads the whole segment,
 * so all its bytes count.
 */
export function sumsOfBranch(
  { rewards, first_step_number: first, next_step_number: next, reward_sum: before, byte_sum, body_bytes }: SegmentSums,
  stepNumber: bigint,
): Sums {
  const rewardSum = rewardSumAt({ rewards, first_step_number: first, reward_sum: before }, stepNumber);
  return { ...NO_SUMS, rewardSum, byteSum: byte_sum + BigInt(body_bytes) + BigInt(STEP_BYTES) * (next - first) };
}

/** Returns the sum of rewards along the lineage up to a step of a segment. */
export function rewardSumAt(
  { rewards, first_step_number: first, reward_sum }: Pick<SegmentSums, 'rewards' | 'first_step_number' | 'reward_sum'>,
  stepNumber: bigint,
): number {
  return rewardsOf(rewards)
    .slice(0, Number(stepNumber - first) + 1)
    .reduce(addReward, readReal(reward_sum));
}

/** Reads the column `rewards` of a segment: a reward for each step, undefined for none. */
export function rewardsOf(rewards: string): (number | undefined)[] {
  return (JSON.parse(rewards) as (number | string | null)[]).map((each) =>
    each === null ? undefined : readReal(each),
  );
}
