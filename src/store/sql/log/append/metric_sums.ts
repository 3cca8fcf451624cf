import type { Step } from '../../../../domain/step.ts';
import { IMMENSE_SUM } from '../../kit/expressions.ts';

/** The sum of all values that cannot make it overflow, the smallest and the largest value. */
export type MetricSum = readonly [total: number | null, least: number, most: number];

export function addMetrics(sums: Map<string, MetricSum>, metrics: Step['metrics']): void {
  for (const [name, value] of metrics) {
    if (Number.isNaN(value)) continue;
    // JSON has no infinities. All that counts is whether a value is beyond the limit.
    const shown = Math.max(-Number.MAX_VALUE, Math.min(Number.MAX_VALUE, value));
    addMetricSums(sums, name, [Math.abs(value) < IMMENSE_SUM ? value : null, shown, shown]);
  }
}

export function addMetricSums(sums: Map<string, MetricSum>, name: string, added: MetricSum): void {
  const sum = sums.get(name);
  if (sum === undefined) {
    sums.set(name, added);
    return;
  }
  const total = sum[0] === null ? added[0] : added[0] === null ? sum[0] : sum[0] + added[0];
  sums.set(name, [total, Math.min(sum[1], added[1]), Math.max(sum[2], added[2])]);
}
