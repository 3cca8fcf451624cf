import { type RawBuilder, type Selectable, type SqlBool, sql } from 'kysely';
import { taskNotFound } from '../../../domain/errors.ts';
import { parseInstant } from '../../../domain/instant.ts';
import type { Validator } from '../../../domain/rollout.ts';
import { tupleKey } from '../../../domain/tuple_key.ts';
import type { Page } from '../../contract/page.ts';
import type { ValidatorUpsert } from '../../contract/task.ts';
import type { Db, Engine } from '../engine.ts';
import { columnsIn, overwritten } from '../tables/selection.ts';
import { VALIDATORS } from '../tables/tasks.ts';
import type { ValidatorsTable } from '../tables.ts';
import { type NamespaceTransaction, type ReadScope, type Transaction, writeIn } from '../transaction.ts';
import { changedColumns, flag, isSet } from '../values.ts';
import { type Catalogue, upsertAll } from './catalogue.ts';
import { findTask } from './tasks.ts';

export async function upsertValidators(
  engine: Engine,
  namespace: string,
  validators: readonly ValidatorUpsert[],
): Promise<{ readonly ids: readonly string[]; readonly created: number }> {
  return writeIn(engine, namespace, async (tx) => {
    const tasks = await taskKeys(tx, validators);
    const given = validators.map((validator) => ({ validator, task: tasks.get(validator.taskId) ?? 0n }));
    const { created } = await upsertAll(tx, CATALOGUE, given);
    const rows = await tx.db.selectFrom('validators').select(['task', 'type', 'id']).where(isOneOf(given)).execute();
    const ids = new Map(rows.map(({ task, type, id }) => [tupleKey(task, type), id]));
    return { ids: given.map((each) => ids.get(nameOf(each)) ?? ''), created };
  });
}

interface Given {
  readonly validator: ValidatorUpsert;
  /** Row key of the task. */
  readonly task: bigint;
}

function nameOf({ validator, task }: Given): string {
  return tupleKey(task, validator.type);
}

/** Tasks are never deleted, so they need no lock. Errors: TASK_NOT_FOUND. */
async function taskKeys(
  tx: NamespaceTransaction,
  validators: readonly ValidatorUpsert[],
): Promise<Map<string, bigint>> {
  const ids = [...new Set(validators.map(({ taskId }) => taskId))];
  const rows = await tx.db
    .selectFrom('tasks')
    .select(['id', 'key'])
    .where('namespace', '=', tx.namespace)
    .where('id', 'in', ids)
    .execute();
  const keys = new Map(rows.map(({ id, key }) => [id, key]));
  const missing = ids.find((id) => !keys.has(id));
  if (missing !== undefined) throw taskNotFound(missing);
  return keys;
}

type ValidatorColumns = Selectable<ValidatorsTable>;

const CATALOGUE: Catalogue<Given, ValidatorColumns> = {
  nameOf,
  async find(tx, given) {
    const rows = await tx.db.selectFrom('validators').select(['task', 'type']).where(isOneOf(given)).execute();
    return new Set(rows.map(({ task, type }) => tupleKey(task, type)));
  },
  async lock(tx, given) {
    const query = tx.db.selectFrom('validators').selectAll().where(isOneOf(given)).orderBy('task').orderBy('type');
    const rows = await tx.engine.lock(query, 'write').execute();
    return new Map(rows.map((row) => [tupleKey(row.task, row.type), row]));
  },
  async insert(tx, given, now) {
    const keys = await tx.engine.nextKeys(tx.db, 'validators', given.length);
    const empty = { query: '', method: '', expected_result: '', config_json: '', advisory: 0 } as const;
    const inserted = await tx.db
      .insertInto('validators')
      .values(
        given.map(({ validator, task }, i) => ({
          key: keys[i]!,
          namespace: tx.namespace,
          id: validator.newId,
          task,
          type: validator.type,
          ...empty,
          ...columnsOf(validator),
          create_time: now,
          update_time: now,
        })),
      )
      .onConflict((conflict) => conflict.columns(['task', 'type']).doNothing())
      .returning(['task', 'type'])
      .execute();
    return new Set(inserted.map(({ task, type }) => tupleKey(task, type)));
  },
  change(row, { validator }, now) {
    const { advisory = flag(isSet(row.advisory)), ...texts } = columnsOf(validator);
    const differs =
      advisory !== flag(isSet(row.advisory)) ||
      Object.entries(texts).some(([column, value]) => row[column as keyof ValidatorColumns] !== value);
    return differs ? { ...row, ...texts, advisory, update_time: now } : undefined;
  },
  write: writeValidators,
};

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

/** Condition for rows with these tasks and types. */
function isOneOf(given: readonly Given[]): RawBuilder<SqlBool> {
  const names = given.map(({ validator, task }) => sql`(cast(${task} as bigint), ${validator.type})`);
  return sql<SqlBool>`(task, type) in (values ${sql.join(names)})`;
}

/** Writes complete rows that exist and are locked. */
async function writeValidators(tx: Transaction, rows: readonly ValidatorColumns[]): Promise<void> {
  await tx.db
    .insertInto('validators')
    .values(rows.map((row) => ({ ...row, advisory: flag(isSet(row.advisory)) })))
    .onConflict((conflict) =>
      conflict
        .column('key')
        .doUpdateSet(overwritten(VALIDATORS, ['key', 'namespace', 'id', 'task', 'type', 'create_time'])),
    )
    .execute();
}

/** Selects validators (`v`), with the ids of their tasks. */
export function selectValidators(db: Db) {
  return db
    .selectFrom('validators as v')
    .innerJoin('tasks as k', 'k.key', 'v.task')
    .select(columnsIn(VALIDATORS, 'v', 'FULL', ['namespace']))
    .select('k.id as task_id');
}

export async function findValidator({ db, namespace }: ReadScope, id: string): Promise<Validator | undefined> {
  const row = await selectValidators(db).where('v.namespace', '=', namespace).where('v.id', '=', id).executeTakeFirst();
  return row === undefined ? undefined : readValidator(row);
}

export async function listValidators(scope: ReadScope, taskId: string, page: Page<string>): Promise<Validator[]> {
  const task = await findTask(scope, taskId);
  if (task === undefined) throw taskNotFound(taskId);
  let query = selectValidators(scope.db).where('v.task', '=', task.key).where('v.namespace', '=', scope.namespace);
  if (page.after !== undefined) query = query.where('v.type', '>', page.after);
  const rows = await query.orderBy('v.type').limit(page.limit).execute();
  return rows.map(readValidator);
}

export function readValidator(
  row: Omit<ValidatorColumns, 'namespace' | 'task'> & { readonly task_id: string },
): Validator {
  return {
    key: row.key,
    id: row.id,
    taskId: row.task_id,
    type: row.type,
    query: row.query,
    method: row.method,
    expectedResult: row.expected_result,
    configJson: row.config_json,
    advisory: isSet(row.advisory),
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
  };
}
