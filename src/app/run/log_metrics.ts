import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import { fitsBytes } from '../../domain/text.ts';
import type { NewMetricPoint } from '../../store/contract/metric.ts';
import type { App } from '../app.ts';

export interface LogMetricsArgs {
  readonly runId: string;
  /** 1 to 10,000, in the order of arrival. */
  readonly points: readonly NewMetricPoint[];
}

/** M1: all points or none. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND. */
export async function logMetrics(app: App, caller: Caller, { runId, points }: LogMetricsArgs): Promise<void> {
  requirePoints(points);
  await app.store.logMetrics(caller.namespace, runId, points);
}

function requirePoints(points: readonly NewMetricPoint[]): void {
  if (points.length === 0 || points.length > LIMITS.metricPoints) {
    throw invalidField(
      'points',
      `must be 1 to ${LIMITS.metricPoints}, not ${points.length}: send more in several calls`,
    );
  }
  // Names come again and again, and one that was right is.
  const known = new Set<string>();
  for (const [i, { name }] of points.entries()) {
    if (known.has(name)) continue;
    if (name === '' || !fitsBytes(name, LIMITS.seriesNameBytes)) {
      throw invalidField(`points[${i}].key`, `must have 1 to ${LIMITS.seriesNameBytes} bytes`);
    }
    known.add(name);
  }
}
