import type { Updateable } from 'kysely';
import type { AttemptReport } from '../../../contract/rollout.ts';
import { mergeMetrics } from '../../kit/metric_maps.ts';
import type { AttemptsTable } from '../../kit/tables.ts';
import type { Transaction } from '../../kit/transaction.ts';
import { bindFlag, bindMetrics } from '../../kit/values.ts';
import { readFlag } from '../rollout/rows.ts';
import type { LockedRollout } from '../rollout/writing.ts';
import { bindTimings } from '../stage/rows.ts';
import { mergeTimings } from '../stage/stages.ts';
import type { AttemptRow } from './rows.ts';
import { writeValidations } from './validations.ts';

/**
 * Writes the validations that a worker reports at the end of an attempt of a locked rollout. Returns the changes of the
 * attempt's row. Errors: INVALID_REQUEST (too many metrics or timings).
 */
export async function writeReport(
  tx: Transaction,
  row: LockedRollout,
  attempt: AttemptRow,
  { validations, metrics, timings }: AttemptReport,
): Promise<Pick<Updateable<AttemptsTable>, 'validation_passed' | 'metrics' | 'timings'>> {
  const passed =
    validations.length === 0
      ? readFlag(attempt.validation_passed)
      : await writeValidations(tx, row, attempt.number, validations, 'validations');
  return {
    validation_passed: bindFlag(passed),
    metrics: bindMetrics(mergeMetrics(attempt.metrics, metrics)),
    timings: bindTimings(mergeTimings(attempt.timings, timings)),
  };
}
