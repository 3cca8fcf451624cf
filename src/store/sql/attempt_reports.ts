import type { Updateable } from 'kysely';
import type { AttemptReport } from '../contract/rollout.ts';
import type { AttemptRow } from './attempt_rows.ts';
import type { Tx } from './engine.ts';
import { mergeMetrics } from './metric_maps.ts';
import { readFlag } from './rollout_rows.ts';
import type { LockedRollout } from './rollout_writing.ts';
import { bindTimings } from './stage_rows.ts';
import { mergeTimings } from './stages.ts';
import type { AttemptsTable } from './tables.ts';
import { writeValidations } from './validations.ts';
import { bindFlag, bindMetrics } from './values.ts';

/**
 * Writes the validations that a worker reports at the end of an attempt of a locked rollout. Returns the changes of the
 * attempt's row. Errors: INVALID_REQUEST (too many metrics or timings).
 */
export async function writeReport(
  tx: Tx,
  row: LockedRollout,
  attempt: AttemptRow,
  { validations, metrics, timings }: AttemptReport,
  now: string,
): Promise<Pick<Updateable<AttemptsTable>, 'validation_passed' | 'metrics' | 'timings'>> {
  const passed =
    validations.length === 0
      ? readFlag(attempt.validation_passed)
      : await writeValidations(tx, row, attempt.number, validations, now, 'validations');
  return {
    validation_passed: bindFlag(passed),
    metrics: bindMetrics(mergeMetrics(attempt.metrics, metrics)),
    timings: bindTimings(mergeTimings(attempt.timings, timings)),
  };
}
