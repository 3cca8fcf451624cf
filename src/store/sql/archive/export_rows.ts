import { type CompiledQuery, type RawBuilder, sql } from 'kysely';
import type { Row } from '../tables/table.ts';
import { DELETED_TRAJECTORIES } from '../tables/trajectories.ts';
import type { ReadScope } from '../transaction.ts';
import { readReal } from '../values.ts';
import type { NounName } from './nouns.ts';
import { findRowIds, lineOf, type RowIds, recordOf, trajectoryIds } from './row_ids.ts';
import { realToRecord, toRecord } from './values.ts';

/** Rows of one statement. Each has at most a message. */
const PAGE = 100;
const POINTS = 10_000;

const BY_KEY = { task: 'tasks', validator: 'validators', experiment: 'experiments' } as const;

/** Yields the lines of everything in the catalogue of the namespace, and its experiments. */
export async function* catalogueLines(scope: ReadScope): AsyncGenerator<string, void, undefined> {
  for (const name of ['task', 'validator', 'experiment'] as const) {
    const visible = name === 'experiment' ? sql`and not hidden` : sql``;
    const within = sql`namespace = ${scope.namespace} ${visible}`;
    for await (const rows of pages(scope, BY_KEY[name], within)) yield await linesOf(scope, name, rows);
  }
}

/** The task and the experiment of a single run, and the tasks of its rollouts. */
export async function* partsOfRun(scope: ReadScope, run: bigint): AsyncGenerator<string, void, undefined> {
  const { engine } = scope;
  const tasks = sql`(select task from ${engine.table('rollouts')} where run = ${run} and task is not null)`;
  const experiment = sql`(select experiment from ${engine.table('runs')} where key = ${run})`;
  for await (const rows of pages(scope, 'tasks', sql`key in ${tasks}`)) yield await linesOf(scope, 'task', rows);
  for await (const rows of pages(scope, 'validators', sql`task in ${tasks}`))
    yield await linesOf(scope, 'validator', rows);
  yield* experimentLines(scope, sql`key = ${experiment}`);
}

export async function* experimentLines(
  scope: ReadScope,
  within: RawBuilder<unknown>,
): AsyncGenerator<string, void, undefined> {
  for await (const rows of pages(scope, 'experiments', within)) yield await linesOf(scope, 'experiment', rows);
}

/** Yields the ids that are not created again when they are opened (W1). */
export async function* deletedLines({ engine, db, namespace }: ReadScope): AsyncGenerator<string, void, undefined> {
  for (let after = '00000000-0000-0000-0000-000000000000'; ; ) {
    const { rows } = await sql<Row>`
      select id, delete_time from ${engine.table('deleted_trajectories')}
      where namespace = ${namespace} and id > ${after} order by id limit ${sql.lit(POINTS)}`.execute(db);
    const columns = DELETED_TRAJECTORIES.order.filter(({ name }) => name !== 'namespace');
    for (const row of rows) {
      const values = columns.map((column) => [column.name, toRecord(column, row[column.name])]);
      yield lineOf('deleted_trajectory', Object.fromEntries(values));
    }
    if (rows.length < POINTS) return;
    after = rows.at(-1)!.id as string;
  }
}

/** The main trajectory of a run. It is exported after the run and before its rollouts. */
export async function mainLine(
  { engine, db }: ReadScope,
  { id, main_tree: tree, main_trajectory: key }: Row,
): Promise<string> {
  const refs = tree === null || key === null ? [] : [{ tree: tree as bigint, key: key as bigint }];
  const ids = await trajectoryIds({ engine, db }, refs);
  return lineOf('main_trajectory', { run: id, exists: refs.length > 0, trajectory: ids.get(key as bigint) ?? null });
}

/** Yields the rows of a table with the condition, in order of key. */
export async function* pages(
  { engine, db }: ReadScope,
  table: 'tasks' | 'validators' | 'experiments' | 'runs' | 'groups',
  within: RawBuilder<unknown>,
): AsyncGenerator<readonly Row[], void, undefined> {
  for (let after = 0n; ; ) {
    const { rows } = await sql<Row>`select * from ${engine.table(table)}
      where ${within} and key > ${after} order by key limit ${sql.lit(PAGE)}`.execute(db);
    if (rows.length > 0) yield rows;
    if (rows.length < PAGE) return;
    after = rows.at(-1)!.key as bigint;
  }
}

async function linesOf(scope: ReadScope, name: NounName, rows: readonly Row[]): Promise<string> {
  const ids = await findRowIds(scope, [[name, rows]]);
  return rows.map((row) => lineOf(name, recordOf(name, row, ids))).join('');
}

/**
 * Reads a run with its stages, environments and cancellations, from one snapshot. `isAlone`: without these. Returns
 * false if the run was deleted.
 */
export async function* runLines(
  scope: ReadScope,
  key: bigint,
  isAlone: boolean,
): AsyncGenerator<string, boolean, undefined> {
  const { engine } = scope;
  const of = (table: Parameters<typeof engine.table>[0], condition: RawBuilder<unknown>) =>
    compiled(scope, sql`select * from ${engine.table(table)} where ${condition}`);
  const history = (kind: string) =>
    of('status_changes', sql`tree = ${key} and entity_kind = ${kind} order by entity, ordinal`);
  const [runs, changes, stages, stageChanges, environments, environmentChanges, cancellations] =
    await engine.readSnapshot([
      of('runs', sql`key = ${key} and not hidden`),
      history('RUN'),
      of('stages', sql`run = ${key} order by key`),
      history('STAGE'),
      of('environments', sql`run = ${key} order by key`),
      history('ENVIRONMENT'),
      of('rollout_cancellations', sql`run = ${key} order by stage`),
    ]);
  const [run] = runs;
  if (run === undefined) return false;
  const ids = await findRowIds(scope, [
    ['run', runs],
    ['stage', stages],
    ['environment', environments],
    ['cancellation', cancellations],
  ]);
  yield lineOf('run', { ...recordOf('run', run, ids), history: historyOf(changes, ids) });
  if (isAlone) return true;
  for (const [name, rows, moves] of [
    ['stage', stages, stageChanges],
    ['environment', environments, environmentChanges],
  ] as const) {
    const byRow = Map.groupBy(moves, ({ entity }) => entity);
    for (const row of rows) {
      yield lineOf(name, { ...recordOf(name, row, ids), history: historyOf(byRow.get(row.key) ?? [], ids) });
    }
  }
  for (const row of cancellations) yield lineOf('cancellation', recordOf('cancellation', row, ids));
  return true;
}

function historyOf(changes: readonly Row[], ids: RowIds) {
  return changes.map((change) => recordOf('status_change', change, ids));
}

function compiled(scope: ReadScope, query: RawBuilder<unknown>): CompiledQuery<Row> {
  return query.compile(scope.db) as CompiledQuery<Row>;
}

/** Yields the points of all series of a run. */
export async function* metricLines({ engine, db }: ReadScope, run: bigint): AsyncGenerator<string, void, undefined> {
  const { rows: series } = await sql<{ key: bigint; name: string; run: string; stage: string | null }>`
    select m.key, m.name, cast(r.id as text) as run, cast(s.id as text) as stage
    from ${engine.table('metric_series')} as m
    join ${engine.table('runs')} as r on r.key = m.run
    left join ${engine.table('stages')} as s on s.key = m.stage
    where m.run = ${run} order by m.key`.execute(db);
  for (const { key, ...named } of series) {
    for (let after: bigint | undefined, isFirst = true; ; isFirst = false) {
      const from = after === undefined ? sql`` : sql`and metric_step > ${after}`;
      const { rows } = await sql<{ metric_step: bigint; value: number | string }>`
        select metric_step, value from ${engine.table('metric_points')}
        where series = ${key} ${from} order by metric_step limit ${sql.lit(POINTS)}`.execute(db);
      if (rows.length === 0 && !isFirst) break;
      const points = rows.map(({ metric_step, value }) => [`${metric_step}`, realToRecord(readReal(value))]);
      yield lineOf('metric_points', { ...named, points });
      if (rows.length < POINTS) break;
      after = rows.at(-1)!.metric_step;
    }
  }
}

/** Yields the groups of a run, each with its first rollouts from one snapshot. Returns the number of rollouts. */
export async function* groupLines(scope: ReadScope, run: bigint): AsyncGenerator<string, bigint, undefined> {
  let count = 0n;
  for await (const groups of pages(scope, 'groups', sql`run = ${run}`)) {
    for (const { key } of groups) {
      for (let after: bigint | undefined; ; ) {
        const page = await rolloutPage(scope, run, key as bigint, after);
        for (const line of page.lines) yield line;
        count += BigInt(page.rollouts);
        if (page.next === undefined) break;
        after = page.next;
      }
    }
  }
  return count;
}

/** Reads rollouts of a group with everything in them, from one snapshot; with the group itself, if they are the first. */
async function rolloutPage(scope: ReadScope, run: bigint, group: bigint, after: bigint | undefined) {
  const { engine } = scope;
  const rollouts = engine.table('rollouts');
  const beyond = after === undefined ? sql`` : sql`and number > ${after}`;
  const page = sql`group_key = ${group} ${beyond} order by number limit ${sql.lit(PAGE)}`;
  const keys = sql`(select key from ${rollouts} where ${page})`;
  const of = (table: 'attempts' | 'validations' | 'validation_overrides' | 'rollout_environments', order: string) =>
    compiled(
      scope,
      sql`select * from ${engine.table(table)} where rollout in ${keys} order by rollout, ${sql.raw(order)}`,
    );
  const [groups, found, attempts, validations, overrides, environments, changes] = await engine.readSnapshot([
    compiled(scope, sql`select * from ${engine.table('groups')} where key = ${group}`),
    compiled(scope, sql`select * from ${rollouts} where ${page}`),
    of('attempts', 'number'),
    of('validations', 'attempt, name'),
    of('validation_overrides', 'ordinal'),
    of('rollout_environments', 'attempt, environment'),
    compiled(
      scope,
      sql`select * from ${engine.table('status_changes')}
        where tree = ${run} and entity_kind = 'ROLLOUT' and entity in ${keys} order by entity, ordinal`,
    ),
  ]);
  const ids = await findRowIds(scope, [
    ['group', groups],
    ['rollout', found],
    ['attempt', attempts],
    ['validation', validations],
    ['rollout_environment', environments],
  ]);
  const inRollouts = (
    [
      ['attempts', 'attempt', attempts, 'rollout'],
      ['validations', 'validation', validations, 'rollout'],
      ['overrides', 'override', overrides, 'rollout'],
      ['environments', 'rollout_environment', environments, 'rollout'],
      ['history', 'status_change', changes, 'entity'],
    ] as const
  ).map(([field, name, rows, column]) => ({ field, name, byRollout: Map.groupBy(rows, (row) => row[column]) }));
  const lines = after === undefined ? groups.map((row) => lineOf('group', recordOf('group', row, ids))) : [];
  for (const row of found) {
    const parts = inRollouts.map(({ field, name, byRollout }) => [
      field,
      (byRollout.get(row.key) ?? []).map((part) => recordOf(name, part, ids)),
    ]);
    lines.push(lineOf('rollout', { ...recordOf('rollout', row, ids), ...Object.fromEntries(parts) }));
  }
  const next = found.length < PAGE ? undefined : (found.at(-1)!.number as bigint);
  return { lines, rollouts: found.length, next };
}
