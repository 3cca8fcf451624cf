import { type RawBuilder, type SqlBool, sql } from 'kysely';
import type { Engine } from './engine.ts';

/** Whether a column of JSON text, a list of strings, has this item, each engine by its own words for the items of a list. */
export function hasItem(engine: Engine, column: string, item: string): RawBuilder<SqlBool> {
  const list = sql.ref(column);
  return engine.name === 'sqlite'
    ? sql<SqlBool>`exists (select 1 from json_each(${list}) as item where item.value = ${item})`
    : sql<SqlBool>`exists (select 1 from json_array_elements_text(${list}::json) as item (value) where item.value = ${item})`;
}
