import type { Insertable, Selectable } from 'kysely';
import { invalidField } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import type { Validator } from '../../../../domain/rollout.ts';
import type { TaskUpsert, ValidatorUpsert } from '../../../contract/task.ts';
import type { Db } from '../../kit/engine.ts';
import { chunksOf } from '../../kit/kept_queries.ts';
import { VALIDATORS } from '../../kit/tables/rollouts.ts';
import { columnsIn, overwritten } from '../../kit/tables/selection.ts';
import type { ValidatorsTable } from '../../kit/tables.ts';
import type { NamespaceTransaction } from '../../kit/transaction.ts';
import { changedColumns, differs, flag, isSet } from '../../kit/values.ts';

type ValidatorRow = Omit<Selectable<ValidatorsTable>, 'namespace'>;

/** A task whose row this transaction has locked or inserted. */
export interface LockedTask {
  readonly key: bigint;
  readonly upsert: TaskUpsert;
  /** Path of the task in the request. */
  readonly path: string;
}

/**
 * Creates, updates and removes validators of tasks. Returns the keys of the tasks whose validators changed. Errors:
 * INVALID_REQUEST (too many validators, or too large ones).
 */
export async function upsertValidators(
  tx: NamespaceTransaction,
  tasks: readonly LockedTask[],
  now: string,
): Promise<ReadonlySet<bigint>> {
  const given = tasks.filter(({ upsert }) => upsert.validators?.size || upsert.removedValidators?.length);
  const keys = given.map(({ key }) => key);
  const stored = byTaskKey(await readRows(tx.db, keys));
  const plans = given.map((task) => planOf(task, stored.get(task.key) ?? [], now));
  const missing = plans.flatMap(({ task, created }) => created.map((each) => ({ task, ...each })));
  const removed = plans.flatMap((plan) => plan.removed);
  for (const chunk of chunksOf(removed)) await tx.db.deleteFrom('validators').where('key', 'in', chunk).execute();
  const newKeys = missing.length === 0 ? [] : await tx.engine.keys.nextMany(tx.db, 'validators', missing.length);
  const rows = [
    ...plans.flatMap(({ updated }) => updated),
    ...missing.map(({ task, type, upsert }, i) => newRow(newKeys[i]!, task, type, upsert, now)),
  ];
  for (const chunk of chunksOf(rows)) await writeRows(tx, chunk);
  const isChanged = (plan: Plan) => plan.created.length + plan.updated.length + plan.removed.length > 0;
  return new Set(plans.filter(isChanged).map(({ task }) => task));
}

/** What an upsert does to the validators of one task. */
interface Plan {
  readonly task: bigint;
  readonly created: readonly { readonly type: string; readonly upsert: ValidatorUpsert }[];
  readonly updated: readonly ValidatorRow[];
  /** Row keys. */
  readonly removed: readonly bigint[];
}

function planOf({ key, upsert, path }: LockedTask, stored: readonly ValidatorRow[], now: string): Plan {
  const { validators = new Map<string, ValidatorUpsert>(), removedValidators = [] } = upsert;
  const removed = new Set(removedValidators);
  const byType = new Map(stored.map((row) => [row.type, row]));
  const created = [...validators].flatMap(([type, given]) => (byType.has(type) ? [] : [{ type, upsert: given }]));
  const after = stored
    .filter(({ type }) => !removed.has(type))
    .map((row): ValidatorRow => changedRow(row, validators.get(row.type), now));
  requireBounds([...after, ...created.map((each) => ({ ...EMPTY, ...columnsOf(each.upsert) }))], `${path}.validators`);
  return {
    task: key,
    created,
    updated: after.filter((row) => row !== byType.get(row.type)),
    removed: stored.filter(({ type }) => removed.has(type)).map((row) => row.key),
  };
}

/** Returns the row itself if nothing changes. */
function changedRow(row: ValidatorRow, given: ValidatorUpsert | undefined, now: string): ValidatorRow {
  if (given === undefined) return row;
  const { advisory = flag(isSet(row.advisory)), ...texts } = columnsOf(given);
  const isChanged = advisory !== flag(isSet(row.advisory)) || differs(row, texts);
  return isChanged ? { ...row, ...texts, advisory, update_time: now } : row;
}

const EMPTY = { query: '', method: '', expected_result: '', config_json: '' };

/** A task with its validators fits into one answer. */
function requireBounds(rows: readonly (typeof EMPTY)[], field: string): void {
  if (rows.length > LIMITS.validators) {
    throw invalidField(field, `would result in ${rows.length} validators, and the maximum is ${LIMITS.validators}`);
  }
  const texts = rows.map(
    ({ query, method, expected_result, config_json }) => query + method + expected_result + config_json,
  );
  const bytes = texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
  if (bytes <= LIMITS.validatorBytes) return;
  throw invalidField(field, `would result in ${bytes} bytes of texts, and the maximum is ${LIMITS.validatorBytes}`);
}

function newRow(key: bigint, task: bigint, type: string, upsert: ValidatorUpsert, now: string): ValidatorRow {
  const own = { ...EMPTY, advisory: flag(false), ...columnsOf(upsert) };
  return { key, id: upsert.newId, task, type, ...own, create_time: now, update_time: now };
}

/** Returns the columns that the given fields are stored in. */
function columnsOf({ query, method, expectedResult, configJson, advisory }: ValidatorUpsert) {
  return changedColumns({
    query,
    method,
    expected_result: expectedResult,
    config_json: configJson,
    advisory: advisory === undefined ? undefined : flag(advisory),
  });
}

/** Writes new rows, and complete rows that exist. */
async function writeRows(tx: NamespaceTransaction, rows: readonly ValidatorRow[]): Promise<void> {
  const values = rows.map((row): Insertable<ValidatorsTable> => {
    return { ...row, namespace: tx.namespace, advisory: flag(isSet(row.advisory)) };
  });
  await tx.db
    .insertInto('validators')
    .values(values)
    .onConflict((conflict) =>
      conflict
        .column('key')
        .doUpdateSet(overwritten(VALIDATORS, ['key', 'namespace', 'id', 'task', 'type', 'create_time'])),
    )
    .execute();
}

/** Selects validators (`v`). */
export function selectValidators(db: Db) {
  return db.selectFrom('validators as v').select(columnsIn(VALIDATORS, 'v', 'FULL', ['namespace']));
}

async function readRows(db: Db, tasks: readonly bigint[]): Promise<ValidatorRow[]> {
  const rows: ValidatorRow[] = [];
  for (const keys of chunksOf(tasks)) {
    rows.push(...(await selectValidators(db).where('v.task', 'in', keys).execute()));
  }
  return rows;
}

function byTaskKey(rows: readonly ValidatorRow[]): ReadonlyMap<bigint, ValidatorRow[]> {
  return Map.groupBy(rows, ({ task }) => task);
}

/** Returns the validators of tasks, by row key of the task. */
export async function readValidators(
  db: Db,
  tasks: readonly bigint[],
): Promise<ReadonlyMap<bigint, ReadonlyMap<string, Validator>>> {
  return byTask(await readRows(db, tasks));
}

/** Returns the validators of tasks by type, by row key of the task. */
export function byTask(rows: readonly ValidatorRow[]): ReadonlyMap<bigint, ReadonlyMap<string, Validator>> {
  const tasks = [...byTaskKey(rows)].map(([task, own]): [bigint, ReadonlyMap<string, Validator>] => {
    return [task, new Map(own.map((row) => [row.type, readValidator(row)]))];
  });
  return new Map(tasks);
}

function readValidator(row: ValidatorRow): Validator {
  return {
    id: row.id,
    query: row.query,
    method: row.method,
    expectedResult: row.expected_result,
    configJson: row.config_json,
    advisory: isSet(row.advisory),
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
  };
}
