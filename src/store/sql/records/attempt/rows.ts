import { type Selectable, sql, type Updateable } from 'kysely';
import type { Status } from '../../../../domain/lifecycle.ts';
import { rolloutSuccess, verdict } from '../../../../domain/rollout.ts';
import type { AttemptsTable, RolloutsTable } from '../../kit/tables.ts';
import type { Transaction } from '../../kit/transaction.ts';
import { bindFlag } from '../../kit/values.ts';
import { readFlag } from '../rollout/rows.ts';
import type { LockedRollout } from '../rollout/writing.ts';

export type AttemptRow = Selectable<AttemptsTable>;

/** Columns that a rollout's row copies from its latest attempt. Both tables use the same names. */
export const ATTEMPT_COLUMNS = [
  'result',
  'summary_json',
  'result_success',
  'validation_passed',
  'override',
  'success',
  'reward',
  'turns',
  'metrics',
  'timings',
  'start_time',
] as const satisfies readonly (keyof AttemptsTable & keyof RolloutsTable)[];

type AttemptColumn = (typeof ATTEMPT_COLUMNS)[number];
type AttemptFlag = 'result_success' | 'validation_passed' | 'override' | 'success';

/** Bound values of the columns that a rollout copies. */
export type AttemptValues = Pick<Selectable<RolloutsTable>, Exclude<AttemptColumn, AttemptFlag>> &
  Readonly<Record<AttemptFlag, 0 | 1 | null>>;

/** Values of the copied columns while a rollout is PENDING: the next attempt starts without them. */
export const NO_ATTEMPT_VALUES: AttemptValues = Object.freeze({
  result: '',
  summary_json: '',
  result_success: null,
  validation_passed: null,
  override: null,
  success: null,
  reward: null,
  turns: 0n,
  metrics: '{}',
  timings: '{}',
  start_time: null,
});

/**
 * Returns what a live or terminal rollout copies from its latest attempt. While the rollout is live, `attempt` may also
 * be the rollout's own row.
 */
export function attemptValuesOf(attempt: Pick<Selectable<RolloutsTable>, AttemptColumn>): AttemptValues {
  return {
    result: attempt.result,
    summary_json: attempt.summary_json,
    result_success: flagOf(attempt.result_success),
    validation_passed: flagOf(attempt.validation_passed),
    override: flagOf(attempt.override),
    success: flagOf(attempt.success),
    reward: attempt.reward,
    turns: attempt.turns,
    metrics: attempt.metrics,
    timings: attempt.timings,
    start_time: attempt.start_time,
  };
}

/** Engines return flags in other types than they accept. */
function flagOf(flag: boolean | bigint | 0 | 1 | null): 0 | 1 | null {
  return bindFlag(readFlag(flag));
}

/**
 * Returns what locked PENDING rollouts copy once they are terminal: values of their latest attempt, or none without an
 * attempt.
 */
export async function readAttemptValues(
  tx: Transaction,
  rollouts: readonly Pick<LockedRollout, 'key' | 'attempt'>[],
): Promise<(rollout: bigint) => AttemptValues> {
  const tried = rollouts.filter(({ attempt }) => attempt > 0n).map(({ key }) => key);
  if (tried.length === 0) return () => NO_ATTEMPT_VALUES;
  const rows = await tx.db
    .selectFrom('attempts as a')
    .innerJoin('rollouts as r', (join) => join.onRef('r.key', '=', 'a.rollout').onRef('r.attempt', '=', 'a.number'))
    .selectAll('a')
    .where(tx.engine.among(sql.ref('a.rollout'), tried))
    .execute();
  const found = new Map(rows.map((row) => [row.rollout, attemptValuesOf(row)]));
  return (rollout) => found.get(rollout) ?? NO_ATTEMPT_VALUES;
}

/** Reads an attempt of a locked rollout. The lock of the rollout covers its attempts. */
export async function readAttemptRow(tx: Transaction, rollout: bigint, number: bigint | number): Promise<AttemptRow> {
  return tx.db
    .selectFrom('attempts')
    .selectAll()
    .where('rollout', '=', rollout)
    .where('number', '=', BigInt(number))
    .executeTakeFirstOrThrow();
}

/**
 * Changes an attempt of a locked rollout and derives its verdict (M3). Returns what the rollout's row copies, or
 * undefined if the rollout does not show this attempt.
 */
export async function changeAttempt(
  tx: Transaction,
  rollout: LockedRollout,
  attempt: AttemptRow,
  changes: Updateable<AttemptsTable>,
): Promise<AttemptValues | undefined> {
  const after = { ...attempt, ...changes } as AttemptRow;
  const success = verdict({
    override: readFlag(after.override),
    validationPassed: readFlag(after.validation_passed),
    result: readFlag(after.result_success),
  });
  await tx.db
    .updateTable('attempts')
    .set({ ...changes, success: bindFlag(success) })
    .where('rollout', '=', attempt.rollout)
    .where('number', '=', attempt.number)
    .execute();
  const status = rollout.status as Status;
  if (attempt.number !== rollout.attempt || status === 'PENDING') return undefined;
  return { ...attemptValuesOf(after), success: bindFlag(rolloutSuccess(status, success)) };
}
