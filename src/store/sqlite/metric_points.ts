import type { StretchExtrema } from '../sql/engine.ts';
import type { PointBatch } from '../sql/point_batch.ts';
import type { Stretch } from '../sql/stretches.ts';
import { bindReal } from '../sql/values.ts';
import type { Connection } from './connection.ts';

const FIND_RUN = 'select key from runs where namespace = ? and id = ? and not hidden';
const FIND_STAGE = 'select key from stages where namespace = ? and id = ? and run = ?';
const FIND_SERIES = 'select key from metric_series where run = ? and stage = ? and name = ?';
const UPSERT = `insert into metric_points (series, metric_step, namespace, value) values (?, ?, ?, ?)
  on conflict (series, metric_step) do update set value = excluded.value`;

/** All or nothing, in a transaction: where the run or one of the series is not there, no point is stored. */
export function upsertPoints(writer: Connection, batch: PointBatch): boolean {
  const keys = seriesKeys(writer, batch);
  if (keys === undefined) return false;
  const { namespace, places, metricSteps, values } = batch;
  const upsert = writer.prepare(UPSERT);
  for (const [i, place] of places.entries()) {
    upsert.run([keys[place], metricSteps[i], namespace, bindReal(values[i]!)]);
  }
  return true;
}

/** Undefined if one of them is not there. */
function seriesKeys(writer: Connection, { namespace, runId, series }: PointBatch): bigint[] | undefined {
  const keyOf = (text: string, values: readonly unknown[]) => {
    const [row] = writer.prepare(text).all(values) as { key: bigint }[];
    return row?.key;
  };
  const run = keyOf(FIND_RUN, [namespace, runId]);
  if (run === undefined) return undefined;
  const keys: bigint[] = [];
  for (const { stageId, name } of series) {
    const stage = stageId === undefined ? 0n : keyOf(FIND_STAGE, [namespace, stageId, run]);
    const key = stage === undefined ? undefined : keyOf(FIND_SERIES, [run, stage, name]);
    if (key === undefined) return undefined;
    keys.push(key);
  }
  return keys;
}

const STRETCH = 'series = ? and metric_step >= ? and metric_step <= ?';
/** Beside a single `min` or `max` SQLite gives the columns of the row that has it: of the first, as it reads the primary key. */
const LOWEST = `select min(value) as value, metric_step, count(*) as points from metric_points where ${STRETCH}`;
const HIGHEST = `select max(value) as value, metric_step from metric_points where ${STRETCH}`;
/** NaN is a text, which sorts above every number: where there is one it covers the largest. */
const HIGHEST_NUMBER = `${HIGHEST} and value <> 'NaN'`;
const NANS = `select count(*) as points from metric_points where ${STRETCH} and value = 'NaN'`;

interface Found {
  readonly value: number | string | null;
  readonly metric_step: bigint | null;
  readonly points: bigint;
}

/** Aggregates without groups, a stretch each: several times as fast as one statement that groups. */
export function readStretch(reader: Connection, series: bigint, { from, to }: Stretch): StretchExtrema {
  const find = (text: string) => (reader.prepare(text).all([series, from, to]) as Found[])[0]!;
  const lowest = find(LOWEST);
  const points = Number(lowest.points);
  if (points === 0) return { points, nans: 0 };
  const largest = find(HIGHEST);
  const nans = largest.value === 'NaN' ? Number(find(NANS).points) : 0;
  if (nans === points) return { points, nans };
  return { points, nans, lowest: pointOf(lowest), highest: pointOf(nans === 0 ? largest : find(HIGHEST_NUMBER)) };
}

function pointOf({ value, metric_step }: Found) {
  if (typeof value !== 'number' || metric_step === null) throw new Error('a stretch with numbers has no smallest one');
  return { metricStep: metric_step, value };
}
