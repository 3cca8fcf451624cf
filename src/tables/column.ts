import type { Timestamp } from '@bufbuild/protobuf/wkt';

/** `json` is JSON text. `time` is a moment. */
export type ColumnType = 'text' | 'json' | 'integer' | 'number' | 'boolean' | 'time';

/** The value of a row in a column: text for `text` and `json`, a bigint for `integer`. Null if there is none. */
export type Cell = string | bigint | number | boolean | Timestamp | null;

export interface ColumnHead {
  readonly name: string;
  readonly type: ColumnType;
}

/** A column, and how its value is read from what a row is made of. */
export interface Column<Source> extends ColumnHead {
  readonly read: (source: Source) => Cell;
}

/** A file of one table that is being written. */
export interface TableFile {
  /** Writes a row: one value for each column. Waits while the disk is slower. */
  readonly write: (row: readonly Cell[]) => Promise<void>;
  /** Writes what is still in memory. The file is complete afterwards. */
  readonly finish: () => Promise<void>;
  /** Releases the file, complete or not. */
  readonly close: () => Promise<void>;
}

/** The table cannot be written. The message is for the person who asked for it. */
export class TableError extends Error {
  override readonly name = 'TableError';
}
