import { DatabaseSync, type StatementSync } from 'node:sqlite';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import { type Cell, type ColumnHead, type ColumnType, TableError, type TableFile, timeText } from './column.ts';

const TYPES: Readonly<Record<ColumnType, string>> = {
  text: 'TEXT',
  json: 'TEXT',
  integer: 'INTEGER',
  number: 'REAL',
  boolean: 'INTEGER',
  time: 'TEXT',
};

/** Creates a SQLite database with one table. Booleans are 0 and 1, times text. NaN, which SQLite lacks, is text. */
export async function createSqliteTable(
  path: string,
  table: string,
  columns: readonly ColumnHead[],
): Promise<TableFile> {
  const database = inSqlite(() => new DatabaseSync(path));
  let insert: StatementSync;
  try {
    insert = inSqlite(() => {
      // A file that is not complete is removed, so it needs neither a journal on disk nor order among its writes. The
      // journal has the pages from before the transaction: those of an empty table.
      database.exec('PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF');
      const described = columns.map(({ name, type }) => `"${name}" ${TYPES[type]}`);
      database.exec(`CREATE TABLE "${table}" (${described.join(', ')}); BEGIN`);
      return database.prepare(`INSERT INTO "${table}" VALUES (${columns.map(() => '?').join(', ')})`);
    });
  } catch (error) {
    database.close();
    throw error;
  }
  return {
    write: async (row) => {
      inSqlite(() => insert.run(...row.map(cellSql)));
    },
    finish: async () => inSqlite(() => database.exec('COMMIT')),
    close: async () => database.close(),
  };
}

function cellSql(cell: Cell): string | bigint | number | null {
  if (typeof cell === 'boolean') return cell ? 1 : 0;
  if (typeof cell === 'number') return Number.isNaN(cell) ? 'NaN' : cell;
  return typeof cell === 'object' && cell !== null ? timeText(cell as Timestamp) : cell;
}

function inSqlite<T>(work: () => T): T {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof Error) || (error as NodeJS.ErrnoException).code !== 'ERR_SQLITE_ERROR') throw error;
    throw new TableError(`The table cannot be written: ${error.message}.`, { cause: error });
  }
}
