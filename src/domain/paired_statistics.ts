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
