import type { DatabaseSync } from 'node:sqlite';

/** A statement checks for cancellation about once per this many rows. A power of two. */
const ROWS_BETWEEN = 32;

const STILL_WANTED = 'anabranch_still_wanted';

/**
 * Makes the statements of a reading connection interruptible: `node:sqlite` has no API for that. Temporary views hide the tables and call `check` for
 * about one in 32 rows that a statement visits. SQLite merges such a view into the statement, so the statement uses the same indexes.
 * `check` ends the statement by throwing.
 */
export function makeInterruptible(database: DatabaseSync, check: () => void): void {
  database.function(STILL_WANTED, { deterministic: false }, () => {
    check();
    return 1;
  });
  const tables = database.prepare(
    `select name from main.sqlite_schema where type = 'table' and name not like 'sqlite\\_%' escape '\\'`,
  );
  for (const { name } of tables.all() as { name: string }[]) {
    database.exec(`create temp view "${name}" as select * from main."${name}"
      where case when random() & ${ROWS_BETWEEN - 1} = 0 then ${STILL_WANTED}() else 1 end`);
  }
}
