import type { Caller } from '../../domain/caller.ts';
import { validatorNotFound } from '../../domain/errors.ts';
import { parseInstant } from '../../domain/instant.ts';
import type { Status } from '../../domain/lifecycle.ts';
import {
  type Rollout,
  type Validation,
  type ValidationOverride,
  validationPassed,
  verdict,
} from '../../domain/rollout.ts';
import { requireLease } from '../../domain/rollout_moves.ts';
import type { Page } from '../contract/page.ts';
import type { NewOverride, NewValidation } from '../contract/rollout.ts';
import type { Db, Engine, Tx } from './engine.ts';
import { findRolloutKey } from './rollout_keys.ts';
import { readFlag, readWritten } from './rollout_rows.ts';
import { heldOf, type LockedRollout, lockRollout, writeRollout } from './rollout_writing.ts';
import { applySuccess } from './sibling_policy.ts';
import { readNow } from './trajectory_rows.ts';
import { bindFlag, flag, isSet } from './values.ts';

export async function recordValidation(
  engine: Engine,
  namespace: string,
  id: string,
  attempt: number | undefined,
  validation: NewValidation,
): Promise<{ readonly rollout: Rollout; readonly validation: Validation }> {
  const recorded = await engine.write(async (tx) => {
    const row = await lockRollout(engine, tx, namespace, id);
    requireLease(heldOf(row), attempt);
    const now = await readNow(tx, engine.now);
    const passed = await writeValidations(tx, row, [validation], now);
    await writeVerdict(engine, tx, row, now, { validationPassed: passed, override: readFlag(row.override) });
    const all = await currentValidations(tx, row.key);
    const written = all.find((each) => each.validatorId === validation.validatorId);
    if (written === undefined) throw new Error('a validation written in this transaction is not there');
    return { rollout: await readWritten(engine, tx, namespace, row.key), validation: written };
  });
  engine.announce([recorded.rollout.run.key]);
  return recorded;
}

export async function overrideValidation(
  engine: Engine,
  caller: Caller,
  id: string,
  { success, reason, actor }: NewOverride,
): Promise<{ readonly rollout: Rollout; readonly override: ValidationOverride }> {
  const { namespace } = caller;
  const overridden = await engine.write(async (tx) => {
    const row = await lockRollout(engine, tx, namespace, id);
    const now = await readNow(tx, engine.now);
    const ordinal = await nextOrdinal(tx, row.key);
    const entry = { ordinal, success: bindFlag(success), reason, actor: actor === '' ? caller.actor : actor };
    await tx
      .insertInto('validation_overrides')
      .values({ rollout: row.key, namespace, ...entry, override_time: now })
      .execute();
    await writeVerdict(engine, tx, row, now, {
      validationPassed: readFlag(row.validation_passed),
      override: success,
    });
    const rollout = await readWritten(engine, tx, namespace, row.key);
    return { rollout, override: readOverride({ ...entry, override_time: now }) };
  });
  engine.announce([overridden.rollout.run.key]);
  return overridden;
}

/** M3: the verdict moves with what it rests on, in the same transaction; a completed rollout that becomes a success by it is one for its siblings (F-49). */
async function writeVerdict(
  engine: Engine,
  tx: Tx,
  row: LockedRollout,
  now: string,
  judged: { readonly validationPassed: boolean | undefined; readonly override: boolean | undefined },
): Promise<void> {
  const success = verdict({ status: row.status as Status, ...judged, result: readFlag(row.result_success) });
  await writeRollout(engine, tx, row.key, now, {
    validation_passed: bindFlag(judged.validationPassed),
    override: bindFlag(judged.override),
    success: bindFlag(success),
  });
  const becomes = success === true && readFlag(row.success) !== true;
  if (becomes && row.status === 'COMPLETED') await applySuccess(engine, tx, row, now);
}

/** The rollout is locked. */
async function nextOrdinal(tx: Tx, rollout: bigint): Promise<bigint> {
  const last = await tx
    .selectFrom('validation_overrides')
    .select('ordinal')
    .where('rollout', '=', rollout)
    .orderBy('ordinal', 'desc')
    .limit(1)
    .executeTakeFirst();
  return last === undefined ? 0n : last.ordinal + 1n;
}

export async function listValidationOverrides(
  engine: Engine,
  namespace: string,
  id: string,
  page: Page<bigint>,
): Promise<ValidationOverride[]> {
  const rollout = await findRolloutKey(engine.db, namespace, id);
  let query = engine.db
    .selectFrom('validation_overrides')
    .select(['ordinal', 'success', 'reason', 'actor', 'override_time'])
    .where('rollout', '=', rollout);
  if (page.after !== undefined) query = query.where('ordinal', '<', page.after);
  const rows = await query.orderBy('ordinal', 'desc').limit(page.limit).execute();
  return rows.map(readOverride);
}

function readOverride(row: {
  readonly ordinal: bigint;
  readonly success: boolean | bigint | number | null;
  readonly reason: string;
  readonly actor: string;
  readonly override_time: string;
}): ValidationOverride {
  const { ordinal, success, reason, actor, override_time: time } = row;
  return { ordinal, success: readFlag(success), reason, actor, overrideTime: parseInstant(time) };
}

/**
 * Upserts what validators say of a rollout, which is locked; of two by one validator the last counts. Gives M3's `validationPassed` of all that it has then.
 * Errors: VALIDATOR_NOT_FOUND, also for one that judges another task than the rollout's.
 */
export async function writeValidations(
  tx: Tx,
  rollout: { readonly key: bigint; readonly namespace: string; readonly task: bigint | null },
  validations: readonly NewValidation[],
  now: string,
): Promise<boolean | undefined> {
  const last = new Map(validations.map((validation) => [validation.validatorId, validation]));
  const validators = await findValidators(tx, rollout, [...last.keys()]);
  const rows = [...last.values()].map((validation) => {
    const validator = validators.get(validation.validatorId);
    if (validator === undefined) throw validatorNotFound(validation.validatorId);
    return {
      rollout: rollout.key,
      attempt: CURRENT,
      validator: validator.key,
      namespace: rollout.namespace,
      advisory: flag(isSet(validator.advisory)),
      success: flag(validation.success),
      query: validation.query === '' ? validator.query : validation.query,
      expected_result: validation.expectedResult === '' ? validator.expected_result : validation.expectedResult,
      actual_result: validation.actualResult,
      execution_ms: validation.executionMs === undefined ? null : Math.round(validation.executionMs),
      error_message: validation.errorMessage,
      details_json: validation.detailsJson,
      record_time: now,
    };
  });
  if (rows.length > 0) {
    await tx
      .insertInto('validations')
      .values(rows)
      .onConflict((conflict) =>
        conflict.columns(['rollout', 'attempt', 'validator']).doUpdateSet((eb) => ({
          advisory: eb.ref('excluded.advisory'),
          success: eb.ref('excluded.success'),
          query: eb.ref('excluded.query'),
          expected_result: eb.ref('excluded.expected_result'),
          actual_result: eb.ref('excluded.actual_result'),
          execution_ms: eb.ref('excluded.execution_ms'),
          error_message: eb.ref('excluded.error_message'),
          details_json: eb.ref('excluded.details_json'),
          record_time: eb.ref('excluded.record_time'),
        })),
      )
      .execute();
  }
  const all = await tx
    .selectFrom('validations')
    .select(['advisory', 'success'])
    .where('rollout', '=', rollout.key)
    .where('attempt', '=', CURRENT)
    .execute();
  return validationPassed(all.map(({ advisory, success }) => ({ advisory: isSet(advisory), success: isSet(success) })));
}

/** Validators of the rollout's task, by id. */
async function findValidators(
  tx: Tx,
  { namespace, task }: { readonly namespace: string; readonly task: bigint | null },
  ids: readonly string[],
) {
  if (task === null || ids.length === 0) return new Map<string, never>();
  const rows = await tx
    .selectFrom('validators')
    .select(['key', 'id', 'query', 'expected_result', 'advisory'])
    .where('namespace', '=', namespace)
    .where('task', '=', task)
    .where('id', 'in', ids)
    .execute();
  return new Map(rows.map((row) => [row.id, row]));
}

/** Stands for the number of the current attempt where earlier ones stand under their own. */
export const CURRENT = 0n;

/** What validators say of a rollout as it is, by type. */
export async function currentValidations(db: Db | Tx, rollout: bigint): Promise<Validation[]> {
  return (await selectValidations(db, rollout).where('n.attempt', '=', CURRENT).execute()).map(readValidation);
}

/** What validators said of a rollout, by type; by the attempts that they judged. */
export async function listValidations(db: Db | Tx, rollout: bigint): Promise<ReadonlyMap<bigint, Validation[]>> {
  const rows = await selectValidations(db, rollout).execute();
  const byAttempt = Map.groupBy(rows, ({ attempt }) => attempt);
  return new Map([...byAttempt].map(([attempt, some]) => [attempt, some.map(readValidation)]));
}

function selectValidations(db: Db | Tx, rollout: bigint) {
  return db
    .selectFrom('validations as n')
    .innerJoin('validators as v', 'v.key', 'n.validator')
    .selectAll('n')
    .select(['v.id as validator_id', 'v.type as validator_type'])
    .where('n.rollout', '=', rollout)
    .orderBy('v.type');
}

type ValidationRow = Awaited<ReturnType<ReturnType<typeof selectValidations>['execute']>>[number];

function readValidation(row: ValidationRow): Validation {
  return {
    validatorId: row.validator_id,
    validatorType: row.validator_type,
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
