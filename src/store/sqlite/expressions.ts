import { sql } from 'kysely';
import type { Expressions } from '../sql/kit/expressions.ts';
import { CLOCK } from './connection.ts';

export const sqliteExpressions = Object.freeze<Expressions>({
  now: sql`${sql.raw(CLOCK)}()`,
  hoursAgo: (hours) => sql`(strftime('%Y-%m-%dT%H:%M:%f', 'now', ${`-${hours * 3600} seconds`}) || '000Z')`,
  /** The views that make statements interruptible hide the tables. Their condition costs more than reading a point. */
  table: (name, isBounded = false) => sql.table(isBounded ? `main.${name}` : name),
  hex: (column) => sql`lower(hex(${column}))`,
  jsonElements: (column) => sql`json_each(${column})`,
  among: (column, keys) => sql`${column} in (select value from json_each(${`[${keys.join(',')}]`}))`,
  hasPair: (column, key, value) =>
    sql`exists (select 1 from json_each(${column}) as pair where pair.key = ${key} and pair.value = ${value})`,
  hasItem: (column, item) => sql`exists (select 1 from json_each(${column}) as item where item.value = ${item})`,
  selectRanges: (ranges) => {
    const json = `[${ranges.map(({ tree, key, from, to }) => `[${tree},${key},${from},${to}]`).join()}]`;
    return sql`select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(${json})`;
  },
});
