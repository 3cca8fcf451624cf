import type { Expression, Updateable } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { runHint } from '../../../../domain/change.ts';
import { invalidField } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import {
  type Rollout,
  type Validation,
  type ValidationOverride,
  validationPassed,
} from '../../../../domain/rollout.ts';
import { requireBegun } from '../../../../domain/rollout_moves.ts';
import type { Page } from '../../../contract/request.ts';
import type { AttemptReport, NewOverride, NewValidation } from '../../../contract/rollout.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { mergeMetrics } from '../../kit/given_fields.ts';
import { VALIDATIONS } from '../../kit/tables/attempts.ts';
import { overwritten } from '../../kit/tables/selection.ts';
import type { AttemptsTable } from '../../kit/tables.ts';
import { type ReadScope, type Transaction, writeAs, writeIn } from '../../kit/transaction.ts';
import { bindFlag, bindMetrics, flag, isSet } from '../../kit/values.ts';
import { applySuccess } from '../rollout/requeueing.ts';
import { findRolloutKey, holdingOf, type LockedRollout, lockRollout, readFlag, readWritten } from '../rollout/rows.ts';
import { bindTimings, mergeTimings } from '../stage/rows.ts';
import { writeWatched } from '../watched_row.ts';
import { type AttemptRow, changeAttempt, readAttemptRow } from './attempts.ts';

export async function recordValidation(
  engine: Engine,
  namespace: string,
  id: string,
  attempt: number | undefined,
  validation: NewValidation,
): Promise<{ readonly rollout: Rollout; readonly validation: Validation }> {
  const recorded = await writeIn(engine, namespace, async (tx) => {
    const row = await lockRollout(tx, id);
    const judged = await readAttemptRow(tx, row.key, requireBegun(holdingOf(row), attempt));
    await tx.readNow();
    const passed = await writeValidations(tx, row, judged.number, [validation], 'validation.name');
    await judge(tx, row, judged, { validation_passed: bindFlag(passed) });
    const all = validationsByAttempt(await selectValidations(tx.db, row.key).execute());
    const written = all.get(judged.number)?.find(({ name }) => name === validation.name);
    if (written === undefined) throw new Error('a validation written in this transaction is missing');
    return { rollout: await readWritten(tx, row), validation: written };
  });
  engine.changes.announce([runHint(recorded.rollout.run.key)]);
  return recorded;
}

export async function overrideValidation(
  engine: Engine,
  caller: Caller,
  id: string,
  attempt: number | undefined,
  { success, reason, actor }: NewOverride,
): Promise<{ readonly rollout: Rollout; readonly override: ValidationOverride }> {
  const overridden = await writeAs(engine, caller, async (tx) => {
    const row = await lockRollout(tx, id);
    const judged = await readAttemptRow(tx, row.key, requireBegun(holdingOf(row), attempt));
    const now = await tx.readNow();
    const entry = {
      ordinal: await nextOrdinal(tx, row.key),
      attempt: judged.number,
      success: bindFlag(success),
      reason,
      actor: actor === '' ? caller.actor : actor,
    };
    await tx.db
      .insertInto('validation_overrides')
      .values({ rollout: row.key, namespace: tx.namespace, ...entry, override_time: now })
      .execute();
    await judge(tx, row, judged, { override: bindFlag(success) });
    const rollout = await readWritten(tx, row);
    return { rollout, override: readOverride({ ...entry, override_time: now }) };
  });
  engine.changes.announce([runHint(overridden.rollout.run.key)]);
  return overridden;
}

/**
 * M3: updates an attempt's verdict in the transaction that changes its basis. If a completed rollout becomes a success,
 * applies the policy of its group.
 */
async function judge(
  tx: Transaction,
  row: LockedRollout,
  attempt: AttemptRow,
  changes: Pick<Updateable<AttemptsTable>, 'validation_passed' | 'override'>,
): Promise<void> {
  const shown = await changeAttempt(tx, row, attempt, changes);
  if (shown === undefined) return;
  await writeWatched(tx, 'rollouts', row.key, shown);
  const becomes = readFlag(shown.success) === true && readFlag(row.success) !== true;
  if (becomes && row.status === 'COMPLETED') await applySuccess(tx, row);
}

/** The caller holds the lock of the rollout. */
async function nextOrdinal(tx: Transaction, rollout: bigint): Promise<bigint> {
  const last = await tx.db
    .selectFrom('validation_overrides')
    .select('ordinal')
    .where('rollout', '=', rollout)
    .orderBy('ordinal', 'desc')
    .limit(1)
    .executeTakeFirst();
  return last === undefined ? 0n : last.ordinal + 1n;
}

export async function listValidationOverrides(
  scope: ReadScope,
  id: string,
  page: Page<bigint>,
): Promise<ValidationOverride[]> {
  const rollout = await findRolloutKey(scope, id);
  let query = scope.db
    .selectFrom('validation_overrides')
    .select(['ordinal', 'attempt', 'success', 'reason', 'actor', 'override_time'])
    .where('rollout', '=', rollout);
  if (page.after !== undefined) query = query.where('ordinal', '<', page.after);
  const rows = await query.orderBy('ordinal', 'desc').limit(page.limit).execute();
  return rows.map(readOverride);
}

/** Selects the overrides that stand, at most one for each attempt. */
export function selectStandingOverrides(db: Db, rollout: Expression<bigint>) {
  return db
    .selectFrom('validation_overrides as o')
    .innerJoin('attempts as a', (join) => join.onRef('a.rollout', '=', 'o.rollout').onRef('a.number', '=', 'o.attempt'))
    .select(['o.ordinal', 'o.attempt', 'o.success', 'o.reason', 'o.actor', 'o.override_time'])
    .where('o.rollout', '=', rollout)
    .where('a.override', 'is not', null)
    .where('o.ordinal', '=', (eb) =>
      eb
        .selectFrom('validation_overrides as n')
        .select((max) => max.fn.max('n.ordinal').as('ordinal'))
        .whereRef('n.rollout', '=', 'o.rollout')
        .whereRef('n.attempt', '=', 'o.attempt'),
    );
}

type OverrideRow = Awaited<ReturnType<ReturnType<typeof selectStandingOverrides>['execute']>>[number];

export function overrideByAttempt(rows: readonly OverrideRow[]): ReadonlyMap<bigint, ValidationOverride> {
  return new Map(rows.map((row) => [row.attempt, readOverride(row)]));
}

function readOverride(row: OverrideRow): ValidationOverride {
  const { ordinal, attempt, success, reason, actor, override_time: time } = row;
  return {
    ordinal,
    attempt: Number(attempt),
    success: readFlag(success),
    reason,
    actor,
    overrideTime: parseInstant(time),
  };
}

/**
 * Upserts validations of an attempt, whose rollout is locked; of two with one name the last counts. A name is the type
 * of a validator of the rollout's task, whose `advisory` then counts, or free. Returns M3's `validationPassed` of all
 * that the attempt has then. Errors: INVALID_REQUEST, of `field` of the request, for too many free names.
 */
async function writeValidations(
  tx: Transaction,
  rollout: { readonly key: bigint; readonly namespace: string; readonly task: bigint | null },
  attempt: bigint,
  validations: readonly NewValidation[],
  field: string,
): Promise<boolean | undefined> {
  const last = new Map(validations.map((validation) => [validation.name, validation]));
  const validators = await findValidators(tx, rollout, [...last.keys()]);
  const rows = [...last.values()].map((validation) => {
    const validator = validators.get(validation.name);
    return {
      rollout: rollout.key,
      attempt,
      name: validation.name,
      validator: validator?.key ?? null,
      namespace: rollout.namespace,
      advisory: flag(validator === undefined ? validation.advisory : isSet(validator.advisory)),
      success: flag(validation.success),
      query: validation.query === '' ? (validator?.query ?? '') : validation.query,
      expected_result:
        validation.expectedResult === '' ? (validator?.expected_result ?? '') : validation.expectedResult,
      actual_result: validation.actualResult,
      execution_ms: validation.executionMs === undefined ? null : Math.round(validation.executionMs),
      error_message: validation.errorMessage,
      details_json: validation.detailsJson,
      record_time: tx.now,
    };
  });
  if (rows.length > 0) {
    await tx.db
      .insertInto('validations')
      .values(rows)
      .onConflict((conflict) =>
        conflict
          .columns(['rollout', 'attempt', 'name'])
          .doUpdateSet(overwritten(VALIDATIONS, ['rollout', 'attempt', 'name', 'namespace'])),
      )
      .execute();
  }
  const all = await tx.db
    .selectFrom('validations')
    .select(['validator', 'advisory', 'success'])
    .where('rollout', '=', rollout.key)
    .where('attempt', '=', attempt)
    .execute();
  requireFewFree(all, field);
  return validationPassed(all.map(({ advisory, success }) => ({ advisory: isSet(advisory), success: isSet(success) })));
}

/** Errors: INVALID_REQUEST. */
function requireFewFree(validations: readonly { readonly validator: bigint | null }[], field: string): void {
  const free = validations.filter(({ validator }) => validator === null).length;
  if (free <= LIMITS.freeValidations) return;
  throw invalidField(
    field,
    `would result in ${free} names of this attempt that are no type of a validator, and the maximum is ${LIMITS.freeValidations}. Use an existing name, or the type of a validator of the task`,
  );
}

/** Returns validators of the rollout's task, by type. */
async function findValidators(
  tx: Transaction,
  { namespace, task }: { readonly namespace: string; readonly task: bigint | null },
  types: readonly string[],
) {
  if (task === null || types.length === 0) return new Map<string, never>();
  const rows = await tx.db
    .selectFrom('validators')
    .select(['key', 'type', 'query', 'expected_result', 'advisory'])
    .where('namespace', '=', namespace)
    .where('task', '=', task)
    .where('type', 'in', types)
    .execute();
  return new Map(rows.map((row) => [row.type, row]));
}

/** Returns validations by attempt. The rows are in the order of `selectValidations`: by name. */
export function validationsByAttempt(rows: readonly ValidationRow[]): ReadonlyMap<bigint, Validation[]> {
  const byAttempt = Map.groupBy(rows, ({ attempt }) => attempt);
  return new Map([...byAttempt].map(([attempt, some]) => [attempt, some.map(readValidation)]));
}

export function selectValidations(db: Db, rollout: bigint | Expression<bigint>) {
  return db
    .selectFrom('validations as n')
    .leftJoin('validators as v', 'v.key', 'n.validator')
    .selectAll('n')
    .select('v.id as validator_id')
    .where('n.rollout', '=', rollout)
    .orderBy('n.name');
}

type ValidationRow = Awaited<ReturnType<ReturnType<typeof selectValidations>['execute']>>[number];

function readValidation(row: ValidationRow): Validation {
  return {
    attempt: Number(row.attempt),
    name: row.name,
    validatorId: row.validator_id ?? '',
    advisory: isSet(row.advisory),
    success: isSet(row.success),
    query: row.query,
    expectedResult: row.expected_result,
    actualResult: row.actual_result,
    executionMs: row.execution_ms === null ? undefined : Number(row.execution_ms),
    errorMessage: row.error_message,
    detailsJson: row.details_json,
    recordTime: parseInstant(row.record_time),
  };
}

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
