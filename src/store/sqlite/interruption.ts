import type { DatabaseSync } from 'node:sqlite';

/** Rows between two looks at whether the statement is still wanted. A power of two: rows are told apart by the low bits of their keys. */
const ROWS_BETWEEN = 32;

const STILL_WANTED = 'anabranch_still_wanted';

/**
 * Makes every statement of a reading connection interruptible, which `node:sqlite` has no call for. Temporary views stand before the tables
 * and call `check` for about one row in 32 that a statement visits. SQLite merges such a view into the statement, so the statement uses the same indexes.
 * `check` ends the statement by throwing.
 */
export function makeInterruptible(database: DatabaseSync, check: () => void): void {
  database.function(STILL_WANTED, { deterministic: false }, () => {
    check();
    return 1;
  });
  for (const { name, keys } of integerKeys(database)) {
    database.exec(`create temp view "${name}" as select * from main."${name}"
      where case when (${keys}) & ${ROWS_BETWEEN - 1} = 0 then ${STILL_WANTED}() else 1 end`);
  }
}

/** Tables with whole numbers in their primary key, and the sum of these. Tables without are small, or are read by key alone. */
function integerKeys(database: DatabaseSync): { name: string; keys: string }[] {
  return database
    .prepare(
      `select t.name, group_concat('"' || c.name || '"', ' + ') as keys
       from main.sqlite_schema as t join pragma_table_info(t.name) as c
       where t.type = 'table' and t.name not like 'sqlite\\_%' escape '\\' and c.pk > 0 and lower(c.type) = 'integer'
       group by t.name`,
    )
    .all() as { name: string; keys: string }[];
}
