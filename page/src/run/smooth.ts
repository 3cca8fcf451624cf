import type { Series } from '../tree/series.ts';

/**
 * Returns the exponential moving average of a series, corrected for its beginning, as Adam does. Each value counts for
 * `1 − weight`. The weight is that of one mean distance between points, so gaps in the steps do not distort the line.
 */
export function smoothed({ steps, values }: Series, weight: number): Series {
  const found = new Float64Array(values.length);
  const distance = ((steps.at(-1) ?? 0) - (steps[0] ?? 0)) / Math.max(1, steps.length - 1) || 1;
  let sum = 0;
  let total = 0;
  for (let at = 0; at < values.length; at += 1) {
    const gap = at === 0 ? 1 : ((steps[at] ?? 0) - (steps[at - 1] ?? 0)) / distance;
    const keep = weight ** Math.max(0, gap);
    const value = values[at] ?? 0;
    if (Number.isFinite(value)) {
      sum = sum * keep + value * (1 - keep);
      total = total * keep + (1 - keep);
    }
    found[at] = total === 0 ? value : sum / total;
  }
  return { steps, values: found };
}
