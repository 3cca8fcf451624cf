import { sql } from 'kysely';
import type { Aggregates, Expressions } from '../sql/kit/expressions.ts';
import { SCHEMA } from './schema.ts';

export const postgresExpressions = Object.freeze<Expressions>({
  now: sql`clock_timestamp()`,
  hoursAgo: (hours) => sql`(clock_timestamp() - make_interval(secs => ${hours * 3600}))`,
  table: (name) => sql.table(`${SCHEMA}.${name}`),
  hex: (column) => sql`encode(${column}, 'hex')`,
  jsonElements: (column) => sql`json_array_elements(cast(${column} as json))`,
  among: (column, keys) => sql`${column} = any(${keys}::bigint[])`,
  amongTexts: (column, texts) => sql`${column} = any(${texts}::text[])`,
  hasPair: (column, key, value) => sql`(${column}::json ->> ${key}) = ${value}`,
  hasItem: (column, item) =>
    sql`exists (select 1 from json_array_elements_text(${column}::json) as item (value) where item.value = ${item})`,
  // Postgres has no index of such a table. It refuses ranges that end before they begin, which a damaged row may have.
  ranges: (from, to, key) => ({
    columns: sql`range_agg(int8range(${from}, greatest(${from}, ${to}))) as ranges`,
    grouping: sql`group by ${key}`,
  }),
  joinsRanges: true,
  isInRanges: (number) => sql`m.ranges @> ${number}`,
  selectRanges: (ranges) => {
    const columns = (['tree', 'key', 'from', 'to'] as const).map(
      (name) => sql`${ranges.map((range) => range[name])}::bigint[]`,
    );
    return sql`select * from unnest(${sql.join(columns)})`;
  },
});

export const postgresAggregates = Object.freeze<Aggregates>({
  squares: (value) => sql`var_pop(${value}) * count(${value})`,
  median: (value) => sql`percentile_cont(0.5) within group (order by ${value})`,
  elapsed: (from, to) => sql`(${to} - ${from})`,
  seconds: (elapsed) => sql`cast(extract(epoch from sum(${elapsed})) as double precision)`,
  textAt: (object, key) => sql`(cast(${object} as json) ->> ${key})`,
  numberAt: (metrics, key) => sql`nullif(cast(cast(${metrics} as json) ->> ${key} as double precision), 'NaN')`,
  plannedGroupSize: (plan, kind) => sql`case when ${plan} = '' then 0 else coalesce((
    select cast(entry.value ->> 'groupSize' as bigint) from json_array_elements(cast(${plan} as json) -> 'stagePlans') as entry
    where entry.value ->> 'kind' = ${kind}), 0) end`,
  pairs: (metrics) => ({
    table: sql`json_each_text(cast(${metrics} as json)) as pair(name, text)`,
    name: sql`pair.name`,
    number: sql`nullif(cast(pair.text as double precision), 'NaN')`,
  }),
  metricSums: (sums) => ({
    table: sql`json_each(cast(${sums} as json)) as pair(name, numbers)`,
    name: sql`pair.name`,
    total: sql`cast(pair.numbers ->> 0 as double precision)`,
    least: sql`cast(pair.numbers ->> 1 as double precision)`,
    most: sql`cast(pair.numbers ->> 2 as double precision)`,
  }),
  containsText: (text, object, part) =>
    sql`exists (select 1 from (select ${text} as value union all select value from json_each_text(cast(${object} as json))) as own where strpos(lower(own.value collate "C"), ${part}) > 0)`,
  bytewise: (text) => sql`(${text}) collate "C"`,
});
