import { sql } from 'kysely';
import type { Expressions } from '../sql/kit/expressions.ts';
import { SCHEMA } from './schema.ts';

export const postgresExpressions = Object.freeze<Expressions>({
  now: sql`clock_timestamp()`,
  hoursAgo: (hours) => sql`(clock_timestamp() - make_interval(secs => ${hours * 3600}))`,
  table: (name) => sql.table(`${SCHEMA}.${name}`),
  hex: (column) => sql`encode(${column}, 'hex')`,
  jsonElements: (column) => sql`json_array_elements(cast(${column} as json))`,
  among: (column, keys) => sql`${column} = any(${keys}::bigint[])`,
  hasPair: (column, key, value) => sql`(${column}::json ->> ${key}) = ${value}`,
  hasItem: (column, item) =>
    sql`exists (select 1 from json_array_elements_text(${column}::json) as item (value) where item.value = ${item})`,
  selectRanges: (ranges) => {
    const columns = (['tree', 'key', 'from', 'to'] as const).map(
      (name) => sql`${ranges.map((range) => range[name])}::bigint[]`,
    );
    return sql`select * from unnest(${sql.join(columns)})`;
  },
});
