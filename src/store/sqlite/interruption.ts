import type { DatabaseSync } from 'node:sqlite';

/** Average number of rows between two checks for cancellation. Must be a power of two. */
const ROWS_BETWEEN = 128;

/** SQL function of reading connections that throws if the statement is no longer wanted, and otherwise returns 1. */
export const STILL_WANTED = 'anabranch_still_wanted';

/**
 * Makes the statements of a reading connection interruptible, because `node:sqlite` has no API for that. Temporary
 * views hide the tables and call `check` for about one in 128 rows. SQLite merges such a view into the statement, so
 * that the same indexes are used. `check` ends the statement by throwing.
 */
export function makeInterruptible(database: DatabaseSync, check: () => void): void {
  database.function(STILL_WANTED, { deterministic: false }, () => {
    check();
    return 1;
  });
  for (const { name, keys } of tablesOf(database)) {
    // SQLite evaluates a condition without columns once per statement, and replaces columns that are compared with a
    // constant. The key columns do not change the result; they force an evaluation for each row.
    database.exec(`create temp view "${name}" as select * from main."${name}"
      where case when random() & ${ROWS_BETWEEN - 1} = (${keys}) & 0 then ${STILL_WANTED}() else 1 end`);
  }
  // The schema's own views must read the temporary ones.
  for (const { sql } of database.prepare(`select sql from main.sqlite_schema where type = 'view'`).all())
    database.exec(`${sql}`.replace(/^create view/i, 'create temp view'));
}

/** Returns the tables, each with an expression over all columns of its primary key. */
function tablesOf(database: DatabaseSync): { name: string; keys: string }[] {
  return database
    .prepare(
      `select t.name,
         coalesce(
           group_concat(case lower(c.type) when 'integer' then '"' || c.name || '"' else 'length("' || c.name || '")' end, ' + '),
           'rowid') as keys
       from main.sqlite_schema as t left join pragma_table_info(t.name) as c on c.pk > 0
       where t.type = 'table' and t.name not like 'sqlite\\_%' escape '\\'
       group by t.name`,
    )
    .all() as { name: string; keys: string }[];
}
