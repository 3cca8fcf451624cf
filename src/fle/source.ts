/** Databases of the Factorio Learning Environment (FLE). They are read page by page and never written. */

/** A value as the source stores it. Texts are bytes: SQLite does not guarantee that they are valid UTF-8. */
export interface Cell {
  /** Storage class of SQLite, or the Postgres type. */
  readonly type: string;
  readonly value: null | bigint | number | Uint8Array;
}

/** A row of the table `programs`, by column. */
export type Row = ReadonlyMap<string, Cell>;

export interface FleSource {
  /** Name of the source in messages, without a password. */
  readonly description: string;
  /** Reads HEAD_COLUMNS of all programs in the order of their ids. */
  readHeads(): AsyncIterable<Row>;
  /** Reads whole rows in the order of the ids. Errors: FleImportError if a program no longer exists. */
  readRows(ids: readonly number[]): Promise<readonly Row[]>;
  close(): Promise<void>;
}

/** The source cannot be imported, or not into this store. The message is for the person who chose the source. */
export class FleImportError extends Error {
  override readonly name = 'FleImportError';
}

/** Columns that decide where a program is stored. */
export const HEAD_COLUMNS = ['id', 'parent_id', 'version', 'instance', 'model', 'meta', 'created_at'] as const;

/** Columns that the import reads by name. Other columns are stored unchanged. */
const REQUIRED_COLUMNS = [...HEAD_COLUMNS, 'code', 'response', 'value', 'state_json', 'conversation_json'];

/** Rows per page of heads. Heads are small, except `meta`. */
export const HEAD_PAGE_ROWS = 1000;

export function requireColumns(columns: readonly string[], description: string): void {
  const missing = REQUIRED_COLUMNS.filter((name) => !columns.includes(name));
  if (missing.length === 0) return;
  const found =
    columns.length === 0 ? 'has no table "programs"' : `lacks the columns ${missing.join(', ')} in "programs"`;
  throw new FleImportError(`${description} is not a database of FLE: it ${found}.`);
}

export function quoteName(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

/** Returns the rows in the order of the ids. */
export function inOrder(rows: ReadonlyMap<number, Row>, ids: readonly number[], description: string): Row[] {
  return ids.map((id) => {
    const row = rows.get(id);
    if (row !== undefined) return row;
    throw new FleImportError(`${description}: program ${id} was deleted during the import. Run the command again.`);
  });
}
