import { indexAt, type Series } from '../tree/series.ts';

/** The mean of several series, and between which values they are. */
export interface Band {
  readonly mean: Series;
  readonly low: Float64Array;
  readonly high: Float64Array;
}

/**
 * Returns mean, minimum and maximum of several series at each of their steps. Between two of its points a series has
 * the value of the earlier one. It counts from its first to its last step, and only while its value is a number.
 */
export function bandOf(all: readonly Series[]): Band {
  const steps = Float64Array.from(new Set(all.flatMap((series) => [...series.steps]))).sort();
  const [mean, low, high] = [0, 1, 2].map(() => new Float64Array(steps.length)) as [
    Float64Array,
    Float64Array,
    Float64Array,
  ];
  for (const [at, step] of steps.entries()) {
    let [sum, counted, least, most] = [0, 0, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    for (const series of all) {
      const value = step > (series.steps.at(-1) ?? -1) ? undefined : series.values[indexAt(series, step)];
      if (value === undefined || !Number.isFinite(value)) continue;
      sum += value;
      counted += 1;
      least = Math.min(least, value);
      most = Math.max(most, value);
    }
    mean[at] = counted === 0 ? Number.NaN : sum / counted;
    low[at] = counted === 0 ? Number.NaN : least;
    high[at] = counted === 0 ? Number.NaN : most;
  }
  return { mean: { steps, values: mean }, low, high };
}
