import { type RawBuilder, sql } from 'kysely';
import type { Aggregates } from '../sql/aggregates.ts';
import { SQUARES } from './sum_of_squares.ts';

/** Keys that `->>` uses literally; others would be read as paths. */
const PLAIN_KEY = /^[A-Za-z_][\w.:/ -]*$/;

export const sqliteAggregates = Object.freeze<Aggregates>({
  squares: (value) => sql`${sql.raw(SQUARES)}(${value})`,
  median: (value) => sql`median(${value})`,
  elapsed: (from, to) => sql`(julianday(${to}) - julianday(${from}))`,
  seconds: (elapsed) => sql`sum(${elapsed}) * 86400.0`,
  textAt: (object, key) => at(object, key),
  // Numbers that JSON lacks are stored as strings.
  numberAt: (
    metrics,
    key,
  ) => sql`case ${at(metrics, key)} when 'NaN' then null when 'Infinity' then 9e999 when '-Infinity' then -9e999
    when '-0' then 0.0 else ${at(metrics, key)} end`,
  plannedGroupSize: (plan, kind) => sql`case when ${plan} = '' then 0 else coalesce((
    select entry.value ->> 'groupSize' from json_each(${plan}, '$.stagePlans') as entry
    where entry.value ->> 'kind' = ${kind}), 0) end`,
  pairs: (metrics) => ({
    table: sql`json_each(${metrics}) as pair`,
    name: sql`pair.key`,
    number: sql`case pair.value when 'NaN' then null when 'Infinity' then 9e999 when '-Infinity' then -9e999
      when '-0' then 0.0 else cast(pair.value as real) end`,
  }),
  metricSums: (sums) => ({
    table: sql`json_each(${sums}) as pair`,
    name: sql`pair.key`,
    total: sql`cast(pair.value ->> 0 as real)`,
    least: sql`cast(pair.value ->> 1 as real)`,
    most: sql`cast(pair.value ->> 2 as real)`,
  }),
  bytewise: (text) => sql`${text}`,
});

function at<T>(object: RawBuilder<unknown>, key: string): RawBuilder<T> {
  return PLAIN_KEY.test(key)
    ? sql`(${object} ->> ${key})`
    : sql`(select pair.value from json_each(${object}) as pair where pair.key = ${key})`;
}
