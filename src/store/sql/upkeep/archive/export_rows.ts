import { type RawBuilder, sql } from 'kysely';
import type { Row } from '../../kit/tables/table.ts';
import { DELETED_TRAJECTORIES } from '../../kit/tables/trajectories.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { readReal } from '../../kit/values.ts';
import type { NounName } from './nouns.ts';
import { POINTS_OF_RECORD } from './record_checks.ts';
import { findRowIds, lineOf, recordOf } from './row_ids.ts';
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
    for await (const rows of pages(scope, BY_KEY[name], within)) yield* await linesOfRows(scope, name, rows);
  }
}

/** The tasks of the rollouts of a run. */
export async function* tasksOfRun(scope: ReadScope, run: bigint): AsyncGenerator<string, void, undefined> {
  const tasks = sql`(select task from ${scope.engine.table('rollouts')} where run = ${run} and task is not null)`;
  for await (const rows of pages(scope, 'tasks', sql`key in ${tasks}`)) yield* await linesOfRows(scope, 'task', rows);
  for await (const rows of pages(scope, 'validators', sql`task in ${tasks}`))
    yield* await linesOfRows(scope, 'validator', rows);
}

export async function* experimentLines(scope: ReadScope, key: bigint): AsyncGenerator<string, void, undefined> {
  for await (const rows of pages(scope, 'experiments', sql`key = ${key}`))
    yield* await linesOfRows(scope, 'experiment', rows);
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

/** Yields the rows of a table with the condition, in order of key. */
export async function* pages(
  { engine, db }: ReadScope,
  table: 'tasks' | 'validators' | 'experiments' | 'runs',
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

async function linesOfRows(scope: ReadScope, name: NounName, rows: readonly Row[]): Promise<string[]> {
  const ids = await findRowIds(scope, [[name, rows]]);
  return rows.map((row) => lineOf(name, recordOf(name, row, ids)));
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
      for (let at = 0; at < points.length || at === 0; at += POINTS_OF_RECORD)
        yield lineOf('metric_points', { ...named, points: points.slice(at, at + POINTS_OF_RECORD) });
      if (rows.length < POINTS) break;
      after = rows.at(-1)!.metric_step;
    }
  }
}
