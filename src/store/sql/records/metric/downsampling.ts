import { sql } from 'kysely';
import type { MeasuredSeries, MetricPoints, SeriesExtent } from '../../../../domain/metric.ts';
import type { Engine } from '../../kit/engine.ts';
import { chunksOf, padded } from '../../kit/kept_queries.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { readReal } from '../../kit/values.ts';
import type { PointsEngine, SeriesPoint, SeriesRange } from './points.ts';

/**
 * Series that are read at the same time: enough for two processors of the database, and few enough to leave connections
 * for other calls.
 */
const SERIES_AT_ONCE = 2;
/** Buckets of one statement, so that no statement takes long. */
const BUCKETS_PER_STATEMENT = 32;
/** Points that one statement skips to find the starts of buckets. */
const POINTS_PER_STATEMENT = 100_000n;

const IS_NUMBER = sql`p.value <> 'NaN'`;

export async function downsample(
  scope: ReadScope<PointsEngine>,
  series: readonly MeasuredSeries[],
  maxPoints: number,
): Promise<Map<bigint, MetricPoints>> {
  const ours = await keysOf(scope, series);
  const found = new Map<bigint, MetricPoints>();
  const waiting = series.filter(({ key }) => ours.has(key));
  const readOne = async () => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      found.set(next.key, await downsampleOne(scope.engine, next, maxPoints));
    }
  };
  await Promise.all(Array.from({ length: SERIES_AT_ONCE }, readOne));
  return found;
}

/** Returns the keys of those series that belong to the namespace. */
async function keysOf({ db, namespace }: ReadScope, series: readonly MeasuredSeries[]): Promise<Set<bigint>> {
  const ours = new Set<bigint>();
  for (const some of chunksOf(series)) {
    const keys = some.map(({ key }) => key);
    const rows = await db
      .selectFrom('metric_series')
      .select('key')
      .where('key', 'in', padded(keys))
      .where('namespace', '=', namespace)
      .execute();
    for (const { key } of rows) ours.add(key);
  }
  return ours;
}

async function downsampleOne(
  engine: PointsEngine,
  { key, extent }: MeasuredSeries,
  maxPoints: number,
): Promise<MetricPoints> {
  const byStep = new Map<bigint, number>();
  const keep = (point: SeriesPoint | undefined) => {
    if (point !== undefined) byStep.set(point.metricStep, point.value);
  };
  keep(await numberAtEnd(engine, key, extent, 'asc'));
  keep(await numberAtEnd(engine, key, extent, 'desc'));
  // The first and the last point and two points for each bucket must fit the limit.
  const buckets = await bucketsOf(engine, key, extent, BigInt(Math.floor((maxPoints - 2) / 2)));
  for (let at = 0; at < buckets.length; at += BUCKETS_PER_STATEMENT) {
    for (const { lowest, highest } of await engine.points.readExtrema(
      key,
      buckets.slice(at, at + BUCKETS_PER_STATEMENT),
    )) {
      keep(lowest);
      keep(highest);
    }
  }
  const points = [...byStep].sort(([a], [b]) => (a < b ? -1 : 1));
  return { metricSteps: points.map(([step]) => step), values: points.map(([, value]) => value) };
}

/** Returns the first or the last point of a series that is not NaN. */
async function numberAtEnd(
  engine: Engine,
  series: bigint,
  { firstStep, lastStep }: SeriesExtent,
  order: 'asc' | 'desc',
): Promise<SeriesPoint | undefined> {
  const { rows } = await sql<{ metric_step: bigint; value: number | string }>`
    select p.metric_step, p.value from ${engine.sql.table('metric_points')} as p
    where p.series = ${series} and p.metric_step >= ${firstStep} and p.metric_step <= ${lastStep} and ${IS_NUMBER}
    order by p.metric_step ${sql.raw(order)} limit 1`.execute(engine.byIndex().db);
  return rows[0] && { metricStep: rows[0].metric_step, value: readReal(rows[0].value) };
}

/**
 * Splits a series into at most `count` buckets with equal numbers of non-NaN points. Sizes differ by at most one, and
 * larger buckets come first. The buckets always cover the first to the last step, even if points are logged at the same
 * time.
 */
async function bucketsOf(
  engine: Engine,
  series: bigint,
  { points, nans, firstStep, lastStep }: SeriesExtent,
  count: bigint,
): Promise<SeriesRange[]> {
  const numbers = points - nans;
  if (numbers <= 0n) return [];
  const buckets = count < numbers ? count : numbers;
  const [size, larger] = [numbers / buckets, numbers % buckets];
  // Every step has a point, so the starts need no read.
  if (nans === 0n && points === lastStep - firstStep + 1n) {
    return rangesFrom(
      Array.from({ length: Number(buckets) }, (_, i) => firstStep + BigInt(i) * size + least(BigInt(i), larger)),
      lastStep,
    );
  }
  const starts = [firstStep];
  const addStarts = async (bucketSize: bigint, buckets: bigint) => {
    for (let left = buckets; left > 0n; ) {
      const some = least(left, most(1n, POINTS_PER_STATEMENT / bucketSize));
      starts.push(...(await nextStarts(engine, series, { from: starts.at(-1)!, to: lastStep }, bucketSize, some)));
      left -= some;
    }
  };
  // The start of the first bucket is known, so one lookup fewer is needed.
  const largerLookups = least(larger, buckets - 1n);
  await addStarts(size + 1n, largerLookups);
  await addStarts(size, buckets - 1n - largerLookups);
  return rangesFrom(starts, lastStep);
}

function rangesFrom(starts: readonly bigint[], lastStep: bigint): SeriesRange[] {
  return starts.map((from, i) => ({ from, to: i + 1 < starts.length ? starts[i + 1]! - 1n : lastStep }));
}

/**
 * Returns the first steps of the next `count` buckets after the one that begins at `from`; fewer if the series ends.
 */
async function nextStarts(
  engine: Engine,
  series: bigint,
  { from, to }: SeriesRange,
  size: bigint,
  count: bigint,
): Promise<bigint[]> {
  const points = engine.sql.table('metric_points', size <= POINTS_PER_STATEMENT);
  const { rows } = await sql<{ step: bigint }>`
    with recursive starts(place, step) as (
      select 0, cast(${from} as bigint)
      union all
      select s.place + 1, (
        select p.metric_step from ${points} as p
        where p.series = ${series} and p.metric_step >= s.step and p.metric_step <= ${to} and ${IS_NUMBER}
        order by p.metric_step limit 1 offset ${size}
      )
      from starts as s where s.place < ${count} and s.step is not null
    )
    select step from starts where place > 0 and step is not null order by place`.execute(engine.byIndex().db);
  return rows.map(({ step }) => step);
}

function least(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}

function most(a: bigint, b: bigint): bigint {
  return a > b ? a : b;
}
