import { ownBegin, type Trajectory } from './trajectory.ts';
import { tupleKey } from './tuple_key.ts';

/** The measure by which branches are compared. */
export type BranchMeasure = 'REWARD_SUM' | 'REWARD_MEAN' | 'STEPS';

/** Branches with both values of a label that part from the same parent at the same step. */
export interface BranchPair {
  readonly parentId: string;
  readonly branchPoint: bigint;
  /** Mean of the measures of the branches with the first value, and their number. */
  readonly value: number;
  readonly branches: number;
  readonly otherValue: number;
  readonly otherBranches: number;
  /** `otherValue - value`. */
  readonly difference: number;
}

interface Place {
  readonly parentId: string;
  readonly branchPoint: bigint;
  readonly one: number[];
  readonly other: number[];
}

/** Collects the branches of a tree, in order of creation, and pairs them. */
export class BranchPairs {
  readonly #label: string;
  readonly #values: readonly [string, string];
  readonly #measure: BranchMeasure;
  readonly #places = new Map<string, Place>();

  constructor(label: string, values: readonly [one: string, other: string], measure: BranchMeasure) {
    this.#label = label;
    this.#values = values;
    this.#measure = measure;
  }

  /** Leaves out deleted trajectories, and those without own steps. */
  add(row: Trajectory): void {
    const { parent, hidden, labels } = row;
    const value = labels.get(this.#label);
    if (parent === undefined || hidden || row.nextStepNumber <= ownBegin(row) || value === undefined) return;
    const [one, other] = this.#values;
    if (value !== one && value !== other) return;
    const name = tupleKey(parent.key, parent.branchPoint);
    const place = this.#places.get(name) ?? {
      parentId: parent.id,
      branchPoint: parent.branchPoint,
      one: [],
      other: [],
    };
    this.#places.set(name, place);
    (value === one ? place.one : place.other).push(measureOf(row, this.#measure));
  }

  /** Returns the pairs whose differences are finite, in order of creation of their first branch. */
  pairs(): BranchPair[] {
    return [...this.#places.values()].flatMap(({ parentId, branchPoint, one, other }) => {
      if (one.length === 0 || other.length === 0) return [];
      const [value, otherValue] = [mean(one), mean(other)];
      const difference = otherValue - value;
      if (!Number.isFinite(difference)) return [];
      const counts = { branches: one.length, otherBranches: other.length };
      return [{ parentId, branchPoint, value, otherValue, difference, ...counts }];
    });
  }
}

function measureOf(row: Trajectory, measure: BranchMeasure): number {
  const steps = Number(row.nextStepNumber - ownBegin(row));
  if (measure === 'STEPS') return steps;
  const sum = row.branchRewardSum ?? 0;
  return measure === 'REWARD_SUM' ? sum : sum / steps;
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Statistics of paired differences. */

/** Resamples of a bootstrap interval. */
export const RESAMPLES = 10_000;

/**
 * Returns uniform 32-bit integers: mulberry32 by Tommy Ettinger. Small, fast, and the same in every language with
 * 32-bit integers.
 */
export function mulberry32(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return (mixed ^ (mixed >>> 14)) >>> 0;
  };
}

/**
 * Draws `RESAMPLES` resamples with replacement, and yields the mean of each. Element `floor(u / 2^32 * n)` is drawn for
 * each integer `u` of `mulberry32(seed)`, one resample after another.
 */
export function* resampledMeans(values: Float64Array, seed: number): Generator<number, void, undefined> {
  const next = mulberry32(seed);
  const count = values.length;
  for (let resample = 0; resample < RESAMPLES; resample += 1) {
    let sum = 0;
    for (let i = 0; i < count; i += 1) sum += values[Math.floor((next() / 0x1_0000_0000) * count)]!;
    yield sum / count;
  }
}

/** Returns the bounds of the percentile interval: quantiles of the means, interpolated linearly as NumPy does. */
export function percentileInterval(means: Float64Array, confidence: number): readonly [low: number, high: number] {
  const sorted = means.toSorted();
  const tail = (1 - confidence) / 2;
  return [quantile(sorted, tail), quantile(sorted, 1 - tail)];
}

function quantile(sorted: Float64Array, at: number): number {
  const place = at * (sorted.length - 1);
  const below = Math.floor(place);
  const [low = Number.NaN, high = low] = sorted.subarray(below, below + 2);
  return low + (high - low) * (place - below);
}

/**
 * Returns the p-value of the two-sided exact sign test: that of `scipy.stats.binomtest(successes, trials)`. 1 without
 * trials.
 */
export function signTest(successes: number, trials: number): number {
  const fewer = Math.min(successes, trials - successes);
  if (2 * fewer >= trials) return 1;
  let logTerm = -trials * Math.LN2;
  let sum = Math.exp(logTerm);
  for (let i = 1; i <= fewer; i += 1) {
    logTerm += Math.log((trials - i + 1) / i);
    sum += Math.exp(logTerm);
  }
  return Math.min(1, 2 * sum);
}
