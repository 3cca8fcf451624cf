import { type RawBuilder, sql } from 'kysely';
import { seriesHint } from '../../../../domain/change.ts';
import { stageNotFound } from '../../../../domain/errors.ts';
import type {
  MetricPoints,
  MetricRange,
  NewMetricPoint,
  Series,
  SeriesExtent,
  SeriesFilter,
} from '../../../../domain/metric.ts';
import { tupleKey } from '../../../../domain/tuple_key.ts';
import { keepRun } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { CHUNK, chunksOf, inPowersOfTwo, padded } from '../../kit/kept_queries.ts';
import { type NamespaceTransaction, type ReadScope, type Transaction, writeIn } from '../../kit/transaction.ts';
import { bindReal, readReal } from '../../kit/values.ts';
import { runKeys } from '../run/rows.ts';
import { type PointBatch, type PointsEngine, pointBatch, type SeriesName, writtenIn } from './points.ts';

export async function logMetrics(
  engine: PointsEngine,
  namespace: string,
  runId: string,
  points: readonly NewMetricPoint[],
): Promise<void> {
  const batch = pointBatch(namespace, runId, points);
  if (!(await engine.points.upsert(batch))) await logNewSeries(engine, batch);
  engine.changes.announce([seriesHint(writtenIn(batch))]);
}

/** Stores points if a series is new. Errors: RUN_NOT_FOUND, also if the run was deleted, STAGE_NOT_FOUND. */
function logNewSeries(engine: PointsEngine, batch: PointBatch): Promise<void> {
  return writeIn(engine, batch.namespace, async (tx) => {
    await makeSeries(tx, batch);
    if (!(await engine.points.upsert(batch, tx.db))) throw new Error('a series created in this transaction is missing');
  });
}

/**
 * Creates missing series in order of identity, so that concurrent transactions do not deadlock. A series that another
 * transaction created first is used as it is.
 */
async function makeSeries(tx: NamespaceTransaction, { runId, series }: PointBatch): Promise<void> {
  const { key: run } = await keepRun(tx, runId);
  const stages = await stageKeys(tx, run, series);
  const wanted = series.map(({ stageId, name }) => {
    const stage = stageId === undefined ? 0n : stages.get(stageId);
    if (stage === undefined) throw stageNotFound(stageId ?? '', runId);
    return { stage, name };
  });
  for (const some of chunksOf(wanted)) {
    const there = await namesOf(tx, run, some);
    const missing = some.filter(({ stage, name }) => !there.has(tupleKey(stage, name)));
    if (missing.length === 0) continue;
    const keys = await tx.engine.keys.nextMany(tx.db, 'metric_series', missing.length);
    const rows = missing.map((place, i) => ({ key: keys[i]!, namespace: tx.namespace, run, ...place }));
    for (const values of inPowersOfTwo(rows, CHUNK)) {
      await tx.db
        .insertInto('metric_series')
        .values(values)
        .onConflict((conflict) => conflict.columns(['run', 'stage', 'name']).doNothing())
        .execute();
    }
  }
}

async function namesOf(
  tx: Transaction,
  run: bigint,
  series: readonly { readonly name: string }[],
): Promise<Set<string>> {
  const rows = await tx.db
    .selectFrom('metric_series')
    .select(['stage', 'name'])
    .where('run', '=', run)
    .where('name', 'in', padded([...new Set(series.map(({ name }) => name))]))
    .execute();
  return new Set(rows.map(({ stage, name }) => tupleKey(stage, name)));
}

async function stageKeys(
  tx: NamespaceTransaction,
  run: bigint,
  series: readonly SeriesName[],
): Promise<Map<string, bigint>> {
  const ids = [...new Set(series.flatMap(({ stageId }) => (stageId === undefined ? [] : [stageId])))];
  const keys = new Map<string, bigint>();
  for (const some of chunksOf(ids)) {
    const rows = await tx.db
      .selectFrom('stages')
      .select(['id', 'key'])
      .where('namespace', '=', tx.namespace)
      .where('run', '=', run)
      .where('id', 'in', padded(some))
      .execute();
    for (const { id, key } of rows) keys.set(id, key);
  }
  return keys;
}

export async function listSeries(
  scope: ReadScope,
  { runs, names, stage }: SeriesFilter,
  limit: number,
  after: Series | undefined,
): Promise<Series[]> {
  const { engine } = scope;
  const keys = await runKeys(scope, runs);
  if (keys.length === 0 || names?.length === 0) return [];
  const first = after === undefined ? 0 : runs.indexOf(after.runId);
  const wanted = keys.slice(first).map((key, i) => ({ place: first + i, key }));
  // Padding uses key 0, which no run has.
  const padding = padded(wanted).map(({ place, key }, i) => ({ place, key: i < wanted.length ? key : 0n }));
  const places = padding.map(({ place, key }) => sql`(cast(${place} as bigint), cast(${key} as bigint))`);
  const conditions = [sql`m.run = g.run and m.namespace = ${scope.namespace}`];
  if (names !== undefined) conditions.push(sql`m.name in (${sql.join(padded(names))})`);
  if (stage === 'none') conditions.push(sql`m.stage = 0`);
  else if (stage !== undefined) conditions.push(sql`s.id = ${stage}`);
  if (after !== undefined) conditions.push(behind(engine, first, after));
  const { rows } = await sql<{ key: bigint; place: bigint; stage_id: string | null; name: string }>`
    with g(place, run) as (values ${sql.join(places)})
    select m.key, g.place, s.id as stage_id, m.name
    from g cross join ${engine.sql.table('metric_series')} as m
    left join ${engine.sql.table('stages')} as s on s.key = m.stage
    where ${sql.join(conditions, sql` and `)}
    order by g.place, m.stage, m.name limit ${limit}`.execute(scope.db);
  return rows.map(({ key, place, stage_id, name }) => ({
    key,
    runId: runs[Number(place)] ?? '',
    stageId: stage_id ?? '',
    name,
  }));
}

/** Condition for rows after the cursor, in the order of the list. */
function behind(engine: Engine, place: number, after: Series): RawBuilder<unknown> {
  const stage = sql`(select a.stage from ${engine.sql.table('metric_series')} as a where a.key = ${after.key})`;
  return sql`(g.place, m.stage, m.name) > (cast(${place} as bigint), ${stage}, ${after.name})`;
}

/** Series that one statement counts, and points of each of them. */
const [COUNTED_SERIES, WINDOW] = [16, 100_000];

export async function measureSeries(
  scope: ReadScope,
  series: readonly bigint[],
  range: MetricRange,
): Promise<Map<bigint, SeriesExtent>> {
  const extents = new Map<bigint, SeriesExtent>();
  for (let at = 0; at < series.length; at += COUNTED_SERIES) {
    const rows = await measure(scope, series.slice(at, at + COUNTED_SERIES), range);
    const rests = await Promise.all(rows.map((row) => countRest(scope, row, range)));
    for (const [i, { key, countedTo: _, ...extent }] of rows.entries()) extents.set(key, { ...extent, ...rests[i] });
  }
  return extents;
}

interface Window extends SeriesExtent {
  readonly key: bigint;
  /** Last step that was counted. */
  readonly countedTo: bigint;
}

/**
 * Counts the first points of each series, at most `WINDOW`, in one statement for all series. The counts are returned as
 * one text, because SQLite has no lateral joins.
 */
async function measure(
  { engine, db, namespace }: ReadScope,
  series: readonly bigint[],
  range: MetricRange,
): Promise<Window[]> {
  const points = engine.sql.table('metric_points', true);
  const { rows } = await sql<{
    key: bigint;
    counted: string | null;
    last_step: bigint | null;
    last_value: number | string | null;
  }>`
    select m.key,
      (select count(*) || ' ' || count(case when w.value = 'NaN' then 1 end) || ' ' || min(w.metric_step) || ' ' || max(w.metric_step)
        from (select p.metric_step, p.value from ${points} as p where p.series = m.key and ${inRange(range)} order by p.metric_step limit ${WINDOW}) as w) as counted,
      (select max(p.metric_step) from ${points} as p where p.series = m.key and ${inRange(range)}) as last_step,
      (select p.value from ${points} as p where p.series = m.key and ${inRange(range)} order by p.metric_step desc limit 1) as last_value
    from ${engine.sql.table('metric_series')} as m where m.namespace = ${namespace} and m.key in (${sql.join(padded(series))})`.execute(
    db,
  );
  return rows.flatMap(({ key, counted, last_step, last_value }) => {
    if (counted === null || last_step === null || last_value === null) return [];
    const [count = 0n, nans = 0n, firstStep = 0n, countedTo = 0n] = counted.split(' ').map(BigInt);
    return [{ key, points: count, nans, firstStep, lastStep: last_step, lastValue: readReal(last_value), countedTo }];
  });
}

async function countRest(
  scope: ReadScope,
  first: Window,
  range: MetricRange,
): Promise<{ readonly points: bigint; readonly nans: bigint }> {
  let { points, nans, countedTo } = first;
  while (countedTo < first.lastStep) {
    const [next] = await measure(scope, [first.key], { from: countedTo + 1n, to: range.to });
    if (next === undefined) break;
    points += next.points;
    nans += next.nans;
    countedTo = next.countedTo;
  }
  return { points, nans };
}

function inRange({ from, to }: MetricRange): RawBuilder<unknown> {
  const conditions = [
    ...(from === undefined ? [] : [sql`p.metric_step >= ${from}`]),
    ...(to === undefined ? [] : [sql`p.metric_step < ${to}`]),
  ];
  return conditions.length === 0 ? sql`true` : sql.join(conditions, sql` and `);
}

export async function readPoints(
  { db, namespace }: ReadScope,
  series: bigint,
  { from, to }: MetricRange,
  limit: number,
  numbersOnly = false,
): Promise<MetricPoints> {
  let query = db
    .selectFrom('metric_points')
    .select(['metric_step', 'value'])
    .where('series', '=', series)
    .where('namespace', '=', namespace);
  if (from !== undefined) query = query.where('metric_step', '>=', from);
  if (to !== undefined) query = query.where('metric_step', '<', to);
  if (numbersOnly) query = query.where('value', '<>', bindReal(Number.NaN));
  const rows = await query.orderBy('metric_step').limit(limit).execute();
  return { metricSteps: rows.map((row) => row.metric_step), values: rows.map((row) => readReal(row.value)) };
}
