import { DatabaseSync, type SQLOutputValue } from 'node:sqlite';
import {
  type Cell,
  FleImportError,
  type FleSource,
  HEAD_COLUMNS,
  HEAD_PAGE_ROWS,
  inOrder,
  quoteName,
  type Row,
  requireColumns,
} from './source.ts';

/** Milliseconds to wait for an FLE process that writes to the same file. */
const BUSY_MS = 30_000;

/**
 * Opens the file read-only: its journal mode and its content do not change. Pages are read in separate transactions,
 * because in rollback mode one transaction would lock out FLE.
 */
export function openSqliteSource(file: string): FleSource {
  const description = `SQLite ${file}`;
  let database: DatabaseSync | undefined;
  try {
    database = new DatabaseSync(file, { readOnly: true, timeout: BUSY_MS });
    const described = database.prepare(`SELECT name FROM pragma_table_info('programs') ORDER BY cid`).all();
    const columns = described.map(({ name }) => String(name));
    requireColumns(columns, description);
    return new SqliteSource(database, columns, description);
  } catch (error) {
    database?.close();
    throw explained(error, description);
  }
}

class SqliteSource implements FleSource {
  readonly description: string;
  readonly #database: DatabaseSync;
  readonly #columns: readonly string[];

  constructor(database: DatabaseSync, columns: readonly string[], description: string) {
    this.#database = database;
    this.#columns = columns;
    this.description = description;
  }

  async *readHeads(): AsyncGenerator<Row> {
    const read = this.#reader(HEAD_COLUMNS, 'WHERE id > ? ORDER BY id LIMIT ?');
    let after: bigint | number = -(2n ** 63n);
    for (;;) {
      const rows = read(after, HEAD_PAGE_ROWS);
      yield* rows;
      const last = rows.at(-1)?.get('id')?.value;
      if (rows.length < HEAD_PAGE_ROWS || (typeof last !== 'bigint' && typeof last !== 'number')) return;
      after = last;
    }
  }

  async readRows(ids: readonly number[]): Promise<readonly Row[]> {
    const read = this.#reader(this.#columns, 'WHERE id = ?');
    const rows = ids.flatMap((id) => read(id).map((row) => [id, row] as const));
    return inOrder(new Map(rows), ids, this.description);
  }

  async close(): Promise<void> {
    this.#database.close();
  }

  #reader(columns: readonly string[], condition: string): (...values: (bigint | number)[]) => Row[] {
    const cells = columns.map((name) => {
      const column = quoteName(name);
      return `typeof(${column}), CASE typeof(${column}) WHEN 'text' THEN CAST(${column} AS BLOB) ELSE ${column} END`;
    });
    const statement = this.#database.prepare(`SELECT ${cells.join(', ')} FROM programs ${condition}`);
    statement.setReadBigInts(true);
    statement.setReturnArrays(true);
    return (...values) => {
      try {
        const found = statement.all(...values) as unknown as SQLOutputValue[][];
        return found.map((cellsOfRow) => toRow(columns, cellsOfRow));
      } catch (error) {
        throw explained(error, this.description);
      }
    };
  }
}

/** Cells are pairs of storage class and value. */
function toRow(columns: readonly string[], cells: readonly SQLOutputValue[]): Row {
  return new Map(
    columns.map((name, i) => {
      const [type, value] = [String(cells[2 * i]), cells[2 * i + 1] as Cell['value']];
      return [name, { type, value }];
    }),
  );
}

function explained(error: unknown, description: string): unknown {
  if (!(error instanceof Error) || (error as NodeJS.ErrnoException).code !== 'ERR_SQLITE_ERROR') return error;
  return new FleImportError(`${description} cannot be read: ${error.message}.`);
}
