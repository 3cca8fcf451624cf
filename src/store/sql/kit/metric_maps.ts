import { invalidField } from '../../../domain/errors.ts';
import { LIMITS } from '../../../domain/limits.ts';
import { readMetrics } from './values.ts';

/** FM7: merges metrics by key into a stored map. Errors: INVALID_REQUEST (more than 256 metrics). */
export function mergeMetrics(stored: string, changes: ReadonlyMap<string, number>): Map<string, number> {
  const merged = readMetrics(stored);
  for (const [key, value] of changes) merged.set(key, value);
  if (merged.size > LIMITS.metrics) {
    throw invalidField('metrics', `would result in ${merged.size} metrics, and the maximum is ${LIMITS.metrics}`);
  }
  return merged;
}
