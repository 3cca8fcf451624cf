import { type Insertable, type Selectable, sql } from 'kysely';
import { parseInstant } from '../../../../domain/instant.ts';
import type { Task, Validator } from '../../../../domain/rollout.ts';
import type { Page, View } from '../../../contract/request.ts';
import type { TaskFilter, TaskUpsert, Upserted } from '../../../contract/task.ts';
import { keysById } from '../../kit/by_id.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { chunksOf } from '../../kit/kept_queries.ts';
import { TASKS } from '../../kit/tables/rollouts.ts';
import { columnsIn, overwritten } from '../../kit/tables/selection.ts';
import type { TasksTable } from '../../kit/tables.ts';
import { type NamespaceTransaction, type ReadScope, type Transaction, writeIn } from '../../kit/transaction.ts';
import { changedColumns, differs } from '../../kit/values.ts';
import { readValidators, upsertValidators } from './validators.ts';

/**
 * Creates or updates all given tasks, or none. Ids must be distinct. If several callers create one task at once, one
 * succeeds and the others update it.
 */
export async function upsertTasks(engine: Engine, namespace: string, tasks: readonly TaskUpsert[]): Promise<Upserted> {
  const { created, updated } = await writeIn(engine, namespace, async (tx) => {
    const now = await tx.readNow();
    const found = await keysById(
      tx,
      'tasks',
      tasks.map(({ id }) => id),
    );
    const missing = tasks.filter(({ id }) => !found.has(id)).sort((a, b) => (a.id < b.id ? -1 : 1));
    // Inserts run before locks, both in order of ids, so that concurrent upserts do not deadlock.
    const made = missing.length === 0 ? new Map<string, bigint>() : await insertTasks(tx, missing, now);
    const there = await lockTasks(
      tx,
      tasks.filter(({ id }) => !made.has(id)),
    );
    const locked = tasks.map((upsert, i) => {
      return { upsert, key: made.get(upsert.id) ?? there.get(upsert.id)?.key ?? -1n, path: `tasks[${i}]` };
    });
    const judged = await upsertValidators(tx, locked, now);
    const changed = tasks.flatMap((task) => {
      const row = there.get(task.id);
      return row === undefined ? [] : changedRow(row, task, now, judged.has(row.key));
    });
    if (changed.length > 0) await writeTasks(tx, changed);
    return { created: made.size, updated: changed.length };
  });
  return { created, updated, unchanged: tasks.length - created - updated };
}

type TaskColumns = Selectable<TasksTable>;

/** Locks the rows in order of their ids. */
async function lockTasks(
  tx: NamespaceTransaction,
  tasks: readonly TaskUpsert[],
): Promise<ReadonlyMap<string, TaskColumns>> {
  const found = new Map<string, TaskColumns>();
  for (const ids of chunksOf(tasks.map(({ id }) => id))) {
    const query = tx.db.selectFrom('tasks').selectAll().where('namespace', '=', tx.namespace).where('id', 'in', ids);
    for (const row of await tx.engine.locks.rows(query.orderBy('id'), 'write').execute()) found.set(row.id, row);
  }
  return found;
}

/** Inserts missing rows. Leaves out those that another transaction inserted first. Returns the keys by id. */
async function insertTasks(
  tx: NamespaceTransaction,
  tasks: readonly TaskUpsert[],
  now: string,
): Promise<ReadonlyMap<string, bigint>> {
  const keys = await tx.engine.keys.nextMany(tx.db, 'tasks', tasks.length);
  const made = new Map<string, bigint>();
  const rows = tasks.map((task, i) => newRow(tx.namespace, keys[i]!, task, now));
  for (const chunk of chunksOf(rows)) {
    const inserted = await tx.db
      .insertInto('tasks')
      .values(chunk)
      .onConflict((conflict) => conflict.columns(['namespace', 'id']).doNothing())
      .returning(['id', 'key'])
      .execute();
    for (const { id, key } of inserted) made.set(id, key);
  }
  return made;
}

/** Returns the row with the given fields, or nothing if neither they nor the validators change. */
function changedRow(row: TaskColumns, task: TaskUpsert, now: string, validatorsChanged: boolean): TaskColumns[] {
  const columns = columnsOf(task);
  return differs(row, columns) || validatorsChanged ? [{ ...row, ...columns, update_time: now }] : [];
}

/** Returns the columns that the given fields are stored in. */
function columnsOf(task: TaskUpsert): Partial<TaskColumns> {
  return changedColumns({
    name: task.name,
    description: task.description,
    difficulty: task.difficulty,
    category: task.category,
    app_name: task.appName,
    source_type: task.sourceType,
    max_turns: task.maxTurns,
    tags: task.tags && JSON.stringify(task.tags),
    prerequisites: task.prerequisites && JSON.stringify(task.prerequisites),
    input_json: task.inputJson,
    metadata_json: task.metadataJson,
  });
}

function newRow(namespace: string, key: bigint, task: TaskUpsert, now: string): Insertable<TasksTable> {
  const empty = { name: '', description: '', difficulty: '', category: '', app_name: '', source_type: '' };
  const none = { max_turns: null, tags: '[]', prerequisites: '[]', input_json: '', metadata_json: '' };
  return {
    key,
    namespace,
    id: task.id,
    ...empty,
    ...none,
    ...columnsOf(task),
    create_time: now,
    update_time: now,
  };
}

/** Writes complete rows that exist and are locked. */
async function writeTasks(tx: Transaction, rows: readonly TaskColumns[]): Promise<void> {
  for (const chunk of chunksOf(rows)) {
    await tx.db
      .insertInto('tasks')
      .values(chunk)
      .onConflict((conflict) =>
        conflict.column('key').doUpdateSet(overwritten(TASKS, ['key', 'namespace', 'id', 'create_time'])),
      )
      .execute();
  }
}

/** Rows of tasks (`k`). */
export function selectTasks(db: Db, view: View = 'FULL') {
  return db.selectFrom('tasks as k').select(columnsIn(TASKS, 'k', view, ['namespace']));
}

export async function findTask({ db, namespace }: ReadScope, id: string): Promise<Task | undefined> {
  const row = await selectTasks(db).where('k.namespace', '=', namespace).where('k.id', '=', id).executeTakeFirst();
  if (row === undefined) return undefined;
  return readTask(row, (await readValidators(db, [row.key])).get(row.key));
}

export async function listTasks(
  { engine, db, namespace }: ReadScope,
  filter: TaskFilter,
  page: Page<bigint>,
  view: View,
): Promise<Task[]> {
  const { ids, category, difficulty, sourceType, tags } = filter;
  if (ids?.length === 0) return [];
  let query = selectTasks(db, view).where('k.namespace', '=', namespace);
  if (ids !== undefined) query = query.where('k.id', 'in', ids);
  if (category !== undefined) query = query.where('k.category', '=', category);
  if (difficulty !== undefined) query = query.where('k.difficulty', '=', difficulty);
  if (sourceType !== undefined) query = query.where('k.source_type', '=', sourceType);
  for (const tag of tags ?? []) query = query.where(engine.sql.hasItem(sql.ref('k.tags'), tag));
  if (page.after !== undefined) query = query.where('k.key', '<', page.after);
  const rows = await query.orderBy('k.key', 'desc').limit(page.limit).execute();
  const keys = view === 'FULL' ? rows.map(({ key }) => key) : [];
  const validators = await readValidators(db, keys);
  return rows.map((row) => readTask(row, validators.get(row.key)));
}

export function readTask(
  row: Omit<TaskColumns, 'namespace'>,
  validators: ReadonlyMap<string, Validator> = new Map(),
): Task {
  return {
    key: row.key,
    id: row.id,
    name: row.name,
    description: row.description,
    difficulty: row.difficulty,
    category: row.category,
    appName: row.app_name,
    sourceType: row.source_type,
    maxTurns: row.max_turns ?? undefined,
    tags: JSON.parse(row.tags) as string[],
    prerequisites: JSON.parse(row.prerequisites) as string[],
    inputJson: row.input_json,
    metadataJson: row.metadata_json,
    validators,
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
  };
}
