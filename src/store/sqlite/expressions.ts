import { type RawBuilder, sql } from 'kysely';
import type { Aggregates, Expressions } from '../sql/kit/expressions.ts';
import { CLOCK, SQUARES } from './connection.ts';

export const sqliteExpressions = Object.freeze<Expressions>({
  now: sql`${sql.raw(CLOCK)}()`,
  hoursAgo: (hours) => sql`(strftime('%Y-%m-%dT%H:%M:%f', 'now', ${`-${hours * 3600} seconds`}) || '000Z')`,
  /** The views that make statements interruptible hide the tables. Their condition costs more than reading a point. */
  table: (name, isBounded = false) => sql.table(isBounded ? `main.${name}` : name),
  hex: (column) => sql`lower(hex(${column}))`,
  jsonElements: (column) => sql`json_each(${column})`,
  among: (column, keys) => sql`${column} in (select value from json_each(${`[${keys.join(',')}]`}))`,
  amongTexts: (column, texts) => sql`${column} in (select value from json_each(${JSON.stringify(texts)}))`,
  hasPair: (column, key, value) =>
    sql`exists (select 1 from json_each(${column}) as pair where pair.key = ${key} and pair.value = ${value})`,
  hasItem: (column, item) => sql`exists (select 1 from json_each(${column}) as item where item.value = ${item})`,
  // SQLite makes an index of the key.
  ranges: (from, to) => ({ columns: sql`${from} as lo, ${to} as hi`, grouping: sql`` }),
  joinsRanges: false,
  isInRanges: (number) => sql`m.lo <= ${number} and m.hi > ${number}`,
  selectRanges: (ranges) => {
    const json = `[${ranges.map(({ tree, key, from, to }) => `[${tree},${key},${from},${to}]`).join()}]`;
    return sql`select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(${json})`;
  },
});

/** Keys that `->>` uses literally; others would be read as paths. */
const PLAIN_KEY = /^[A-Za-z_][\w.:/ -]*$/;

export const sqliteAggregates = Object.freeze<Aggregates>({
  squares: (value) => sql`${sql.raw(SQUARES)}(${value})`,
  median: (value) => sql`median(${value})`,
  elapsed: (from, to) => sql`(julianday(${to}) - julianday(${from}))`,
  seconds: (elapsed) => sql`sum(${elapsed}) * 86400.0`,
  textAt: (object, key) => at(object, key),
  numberAt: (metrics, key) => numberOf(at(metrics, key)),
  plannedGroupSize: (plan, kind) => sql`case when ${plan} = '' then 0 else coalesce((
    select entry.value ->> 'groupSize' from json_each(${plan}, '$.stagePlans') as entry
    where entry.value ->> 'kind' = ${kind}), 0) end`,
  pairs: (metrics) => ({ table: sql`json_each(${metrics}) as pair`, ...PAIR }),
  metricSums: (sums) => ({
    table: sql`json_each(${sums}) as pair`,
    name: sql`pair.key`,
    total: sql`cast(pair.value ->> 0 as real)`,
    least: sql`cast(pair.value ->> 1 as real)`,
    most: sql`cast(pair.value ->> 2 as real)`,
  }),
  containsText: (text, object, part) =>
    sql`exists (select 1 from (select ${text} as value union all select value from json_each(${object})) as own where instr(lower(own.value), ${part}) > 0)`,
  bytewise: (text) => sql`${text}`,
});

const PAIR = { name: sql<string>`pair.key`, number: numberOf(sql`pair.value`) };

/** Numbers that JSON lacks are stored as strings. */
function numberOf(value: RawBuilder<unknown>): RawBuilder<number | null> {
  return sql`case ${value} when 'NaN' then null when 'Infinity' then 9e999 when '-Infinity' then -9e999
    when '-0' then 0.0 else cast(${value} as real) end`;
}

function at<T>(object: RawBuilder<unknown>, key: string): RawBuilder<T> {
  return PLAIN_KEY.test(key)
    ? sql`(${object} ->> ${key})`
    : sql`(select pair.value from json_each(${object}) as pair where pair.key = ${key})`;
}
