import type { Expression, RawBuilder, SqlBool } from 'kysely';
import type { TreeRange } from '../../../domain/lineage.ts';
import type { Tables } from './tables.ts';

/** Expressions whose SQL differs between the engines. */
export interface Expressions {
  /** Current time of the database, as a value for a time column. */
  readonly now: RawBuilder<string>;

  /** `time` minus a number of hours, to compare with a time column. */
  hoursAgo(hours: number): RawBuilder<string>;

  /** Name of a table in raw SQL, with its schema if the engine uses one. */
  table(name: keyof Tables, isBounded?: boolean): RawBuilder<unknown>;

  /** Bytes column as hexadecimal text, which drivers read faster than bytes. */
  hex(column: RawBuilder<unknown>): RawBuilder<string>;

  /** The elements of a JSON list as a table with the column `value`, for a `from` clause. The column has JSON text. */
  jsonElements(column: RawBuilder<unknown>): RawBuilder<unknown>;

  /** Condition that a column has one of these values. The text of the statement does not depend on their number. */
  among(column: RawBuilder<unknown>, keys: readonly bigint[]): RawBuilder<SqlBool>;

  /** Condition that a column of JSON text (an object of strings) contains this pair. */
  hasPair(column: Expression<string>, key: string, value: string): Expression<SqlBool>;

  /** Whether a column of JSON text, an array of strings, has this item. */
  hasItem(column: Expression<string>, item: string): Expression<SqlBool>;

  /** Returns a select of the rows `(tree, key, from, to)`. Its text is the same for any number of ranges. */
  selectRanges(ranges: readonly TreeRange[]): RawBuilder<unknown>;
}
