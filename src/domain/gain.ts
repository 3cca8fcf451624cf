/** How a branch compares with its parent over the steps after the branch point that both have. */
export interface Gain {
  /** Difference of the mean rewards. Undefined if infinite rewards leave no number. */
  readonly gain: number | undefined;
  /** Number of these steps; at least 1. */
  readonly gainSteps: bigint;
}

/** One of the two trajectories that `gainOf` compares. */
interface GainSide {
  readonly nextStepNumber: bigint;
  /** Sum of the rewards along the lineage. */
  readonly rewardSum: number;
}

/**
 * Compares a branch with its parent. `sumBefore` is the sum of the rewards of the longer one before the end of the
 * shorter one. Both sums begin with the same steps, so equal rewards have a gain of exactly 0. Returns undefined if
 * there is no step to compare.
 */
export function gainOf(branch: GainSide, parent: GainSide, branchPoint: bigint, sumBefore: number): Gain | undefined {
  const isShorter = branch.nextStepNumber <= parent.nextStepNumber;
  const gainSteps = (isShorter ? branch : parent).nextStepNumber - branchPoint - 1n;
  if (gainSteps <= 0n) return undefined;
  const difference = isShorter ? branch.rewardSum - sumBefore : sumBefore - parent.rewardSum;
  const gain = difference / Number(gainSteps);
  return { gain: Number.isNaN(gain) ? undefined : gain, gainSteps };
}
