import { type CompiledQuery, type RawBuilder, type SqlBool, sql } from 'kysely';
import type { Horizon } from '../../../contract/run.ts';
import type { Spool } from '../../../spool.ts';
import { readHorizon } from '../../kit/changes.ts';
import type { Engine } from '../../kit/engine.ts';
import type { Row } from '../../kit/tables/table.ts';
import { DELETED_TRAJECTORIES } from '../../kit/tables/trajectories.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { numberJson, readReal } from '../../kit/values.ts';
import { type NounName, toRecord } from './nouns.ts';
import { POINTS_OF_RECORD } from './record_checks.ts';
import { findRowIds, lineOf, linesOf, type RowIds, recordOf, trajectoryIds } from './row_keys.ts';

/** Rows of one statement, each with at most a message; of groups and rollouts, with everything in them. */
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
  const tasks = sql`(select task from ${scope.engine.sql.table('rollouts')} where run = ${run} and task is not null)`;
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
      select id, delete_time from ${engine.sql.table('deleted_trajectories')}
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
    const { rows } = await sql<Row>`select * from ${engine.sql.table(table)}
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
    from ${engine.sql.table('metric_series')} as m
    join ${engine.sql.table('runs')} as r on r.key = m.run
    left join ${engine.sql.table('stages')} as s on s.key = m.stage
    where m.run = ${run} order by m.key`.execute(db);
  for (const { key, ...named } of series) {
    for (let after: bigint | undefined, isFirst = true; ; isFirst = false) {
      const from = after === undefined ? sql`` : sql`and metric_step > ${after}`;
      const { rows } = await sql<{ metric_step: bigint; value: number | string }>`
        select metric_step, value from ${engine.sql.table('metric_points')}
        where series = ${key} ${from} order by metric_step limit ${sql.lit(POINTS)}`.execute(db);
      if (rows.length === 0 && !isFirst) break;
      const points = rows.map(({ metric_step, value }) => [`${metric_step}`, numberJson(readReal(value))]);
      for (let at = 0; at < points.length || at === 0; at += POINTS_OF_RECORD)
        yield lineOf('metric_points', { ...named, points: points.slice(at, at + POINTS_OF_RECORD) });
      if (rows.length < POINTS) break;
      after = rows.at(-1)!.metric_step;
    }
  }
}

type TableName = Parameters<Engine['sql']['table']>[0];

/**
 * Reads a run and everything in it, as of one moment, and puts it into the spool. Pages are read one after the other,
 * and what changed meanwhile is read again, until all of that is in one snapshot with the run. Nothing is put if the
 * run was deleted.
 */
export async function spoolRun({ engine, db, namespace }: ReadScope, run: bigint, spool: Spool): Promise<void> {
  const reading = new RunReading({ engine: engine.byIndex(), db, namespace }, run, spool);
  for (let since: Horizon | undefined; ; ) {
    // Before the rows, so that the next look finds what this one misses.
    const horizon = await readHorizon(engine);
    if (!(await reading.look(since?.era === horizon.era ? since : undefined))) return;
    since = horizon;
  }
}

/** Returns the lines of a run alone: its experiment, and the run with its history. None if it was deleted. */
export async function runAlone(scope: ReadScope, run: bigint): Promise<readonly string[]> {
  const statements = ofRun(scope, run).slice(0, 3);
  const [experiments = [], runs = [], changes = []] = await scope.engine.reads.snapshot(statements);
  const ids = await findRowIds(scope, [['run', runs]]);
  return [
    ...experiments.map((row) => lineOf('experiment', recordOf('experiment', row, ids))),
    ...runs.flatMap((row) =>
      linesOf('run', withId(row, recordOf('run', row, ids)), { history: historyOf(changes, ids) }),
    ),
  ];
}

function withId<Of extends object>({ id }: Row, record: Of): Of & { readonly id: unknown } {
  return { ...record, id };
}

/** Position in the order of marks. */
interface Cursor {
  readonly mark: bigint;
  readonly key: bigint;
}

const FIRST: Cursor = { mark: -1n, key: -1n };

class RunReading {
  readonly #scope: ReadScope;
  readonly #run: bigint;
  readonly #spool: Spool;

  constructor(scope: ReadScope, run: bigint, spool: Spool) {
    this.#scope = scope;
    this.#run = run;
    this.#spool = spool;
  }

  /** Reads what has changed. Returns whether another look is necessary, because one snapshot was not enough. */
  async look(since: Horizon | undefined): Promise<boolean> {
    const own = ofRun(this.#scope, this.#run);
    const groups = ofGroups(this.#scope, this.#changed('groups', since, FIRST));
    const rollouts = ofRollouts(this.#scope, this.#run, this.#changed('rollouts', since, FIRST));
    const found = await this.#scope.engine.reads.snapshot([...own, ...groups, ...rollouts]);
    const [ofOwn, ofGroup] = [found.slice(0, own.length), found.slice(own.length, own.length + groups.length)];
    if (ofOwn[1]?.length === 0) return false;
    let nextGroup = await this.#putGroups(ofGroup);
    let nextRollout = await this.#putRollouts(found.slice(own.length + groups.length));
    if (nextGroup === undefined && nextRollout === undefined) {
      await this.#putRun(ofOwn);
      return false;
    }
    while (nextGroup !== undefined) {
      const statements = ofGroups(this.#scope, this.#changed('groups', since, nextGroup));
      nextGroup = await this.#putGroups(await this.#scope.engine.reads.snapshot(statements));
    }
    while (nextRollout !== undefined) {
      const statements = ofRollouts(this.#scope, this.#run, this.#changed('rollouts', since, nextRollout));
      nextRollout = await this.#putRollouts(await this.#scope.engine.reads.snapshot(statements));
    }
    return true;
  }

  /** Selects the keys of the next rows, in the order of an index. */
  #changed(table: 'groups' | 'rollouts', since: Horizon | undefined, after: Cursor): RawBuilder<unknown> {
    const { engine, namespace } = this.#scope;
    const mark = sql.ref('c.mark');
    const conditions = since === undefined ? [sql<SqlBool>`1 = 1`] : engine.changes.since(mark, since);
    const parts = conditions.map(
      (condition) => sql`select * from (select c.mark, c.key from ${engine.sql.table(table)} as c
        where c.run = ${this.#run} and c.namespace = ${namespace} and ${condition}
          and (c.mark, c.key) > (cast(${after.mark} as bigint), cast(${after.key} as bigint))
        order by c.mark, c.key limit ${sql.lit(PAGE)}) as p`,
    );
    return sql`(select f.key from (${sql.join(parts, sql` union all `)}) as f
      order by f.mark, f.key limit ${sql.lit(PAGE)})`;
  }

  async #putGroups([groups = []]: readonly Row[][]): Promise<Cursor | undefined> {
    const ids = await findRowIds(this.#scope, [['group', groups]]);
    for (const row of groups) this.#put('group', row.key, [lineOf('group', recordOf('group', row, ids))]);
    return nextOf(groups);
  }

  async #putRollouts(found: readonly Row[][]): Promise<Cursor | undefined> {
    const [rollouts = [], attempts = [], validations = [], overrides = [], environments = [], changes = []] = found;
    const ids = await findRowIds(this.#scope, [
      ['rollout', rollouts],
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
    for (const row of rollouts) {
      const parts = inRollouts.map(({ field, name, byRollout }) => [
        field,
        (byRollout.get(row.key) ?? []).map((part) => recordOf(name, part, ids)),
      ]);
      const record = withId(row, recordOf('rollout', row, ids));
      this.#put('rollout', row.key, linesOf('rollout', record, Object.fromEntries(parts)));
    }
    return nextOf(rollouts);
  }

  async #putRun(found: readonly Row[][]): Promise<void> {
    const [experiments = [], runs = [], changes = [], stages = [], stageChanges = []] = found;
    const [environments = [], environmentChanges = [], cancellations = []] = found.slice(5);
    const ids = await findRowIds(this.#scope, [
      ['run', runs],
      ['stage', stages],
      ['environment', environments],
      ['cancellation', cancellations],
    ]);
    for (const [name, rows, moves] of [
      ['run', runs, changes],
      ['stage', stages, stageChanges],
      ['environment', environments, environmentChanges],
    ] as const) {
      const byRow = Map.groupBy(moves, ({ entity }) => entity);
      for (const row of rows) {
        const lists = { history: historyOf(byRow.get(row.key) ?? [], ids) };
        this.#put(name, row.key, linesOf(name, withId(row, recordOf(name, row, ids)), lists));
      }
    }
    for (const row of experiments)
      this.#put('experiment', row.key, [lineOf('experiment', recordOf('experiment', row, ids))]);
    for (const row of cancellations)
      this.#put('cancellation', row.stage, [lineOf('cancellation', recordOf('cancellation', row, ids))]);
    for (const { id, main_tree: tree, main_trajectory: key } of runs) {
      const refs = tree === null || key === null ? [] : [{ tree: tree as bigint, key: key as bigint }];
      const trajectory = (await trajectoryIds(this.#scope, refs)).get(key as bigint) ?? null;
      const record = { run: id, exists: refs.length > 0, trajectory };
      this.#put('main_trajectory', this.#run, [lineOf('main_trajectory', record)]);
    }
  }

  #put(kind: Parameters<Spool['put']>[1], key: unknown, lines: readonly string[]): void {
    this.#spool.put(this.#run, kind, key as bigint, lines.join(''));
  }
}

/** Returns where the next page begins. Undefined if there is none. */
function nextOf(rows: readonly Row[]): Cursor | undefined {
  const last = rows.length < PAGE ? undefined : rows.at(-1)!;
  return last === undefined ? undefined : { mark: last.mark as bigint, key: last.key as bigint };
}

function historyOf(changes: readonly Row[], ids: RowIds) {
  return changes.map((change) => recordOf('status_change', change, ids));
}

function from(scope: ReadScope, table: TableName, condition: RawBuilder<unknown>): CompiledQuery<Row> {
  const query = sql`select * from ${scope.engine.sql.table(table)} where ${condition}`;
  return query.compile(scope.db) as CompiledQuery<Row>;
}

/** The experiment, the run, and what belongs to it apart from groups and rollouts. */
function ofRun(scope: ReadScope, run: bigint): CompiledQuery<Row>[] {
  const history = (kind: string) =>
    from(scope, 'status_changes', sql`tree = ${run} and entity_kind = ${kind} order by entity, ordinal`);
  return [
    from(
      scope,
      'experiments',
      sql`key = (select experiment from ${scope.engine.sql.table('runs')} where key = ${run})`,
    ),
    from(scope, 'runs', sql`key = ${run} and not hidden`),
    history('RUN'),
    from(scope, 'stages', sql`run = ${run} order by key`),
    history('STAGE'),
    from(scope, 'environments', sql`run = ${run} order by key`),
    history('ENVIRONMENT'),
    from(scope, 'rollout_cancellations', sql`run = ${run} order by stage`),
  ];
}

function ofGroups(scope: ReadScope, keys: RawBuilder<unknown>): CompiledQuery<Row>[] {
  return [from(scope, 'groups', sql`key in ${keys} order by mark, key`)];
}

function ofRollouts(scope: ReadScope, run: bigint, keys: RawBuilder<unknown>): CompiledQuery<Row>[] {
  const of = (table: TableName, order: string) =>
    from(scope, table, sql`rollout in ${keys} order by rollout, ${sql.raw(order)}`);
  return [
    from(scope, 'rollouts', sql`key in ${keys} order by mark, key`),
    of('attempts', 'number'),
    of('validations', 'attempt, name'),
    of('validation_overrides', 'ordinal'),
    of('rollout_environments', 'attempt, environment'),
    from(
      scope,
      'status_changes',
      sql`tree = ${run} and entity_kind = 'ROLLOUT' and entity in ${keys} order by entity, ordinal`,
    ),
  ];
}
