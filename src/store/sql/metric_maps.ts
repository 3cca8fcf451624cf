import { invalidField } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import { readMetrics } from './values.ts';

/** FM7: a map of metrics as it stands in its column, with changes merged into it by key. Errors: INVALID_REQUEST (over 256). */
export function mergeMetrics(stored: string, changes: ReadonlyMap<string, number>): Map<string, number> {
  const merged = readMetrics(stored);
  for (const [key, value] of changes) merged.set(key, value);
  if (merged.size > LIMITS.metrics) {
    throw invalidField('metrics', `would make ${merged.size} metrics; at most ${LIMITS.metrics} are kept`);
  }
  return merged;
}
