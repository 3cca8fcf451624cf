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

  /** Like `among`, for a column of text. */
  amongTexts(column: RawBuilder<unknown>, texts: readonly string[]): RawBuilder<SqlBool>;

  /** Condition that a column of JSON text (an object of strings) contains this pair. */
  hasPair(column: Expression<string>, key: string, value: string): Expression<SqlBool>;

  /** Whether a column of JSON text, an array of strings, has this item. */
  hasItem(column: Expression<string>, item: string): Expression<SqlBool>;

  /**
   * Columns for ranges [from, to) of integers, and how they are grouped, so that `isInRanges` finds a number fast among
   * the ranges with the same key.
   */
  ranges(
    from: RawBuilder<number>,
    to: RawBuilder<number>,
    key: RawBuilder<unknown>,
  ): { readonly columns: RawBuilder<unknown>; readonly grouping: RawBuilder<unknown> };

  /** Whether `ranges` has one row for each key. */
  readonly joinsRanges: boolean;

  /** Whether a row `m` with such columns has a range that contains a number. */
  isInRanges(number: RawBuilder<unknown>): RawBuilder<unknown>;

  /** Returns a select of the rows `(tree, key, from, to)`. Its text is the same for any number of ranges. */
  selectRanges(ranges: readonly TreeRange[]): RawBuilder<unknown>;
}

/** Aggregates whose SQL differs between the engines. All ignore nulls and return null if no values remain. */
export interface Aggregates {
  /** Sum of squared deviations from the mean. */
  squares(value: RawBuilder<unknown>): RawBuilder<number | null>;
  median(value: RawBuilder<unknown>): RawBuilder<number | null>;
  /** Time between two time columns in the engine's own type, with at least millisecond precision. */
  elapsed(from: RawBuilder<unknown>, to: RawBuilder<unknown>): RawBuilder<unknown>;
  /** Sum of values of `elapsed`, in seconds. */
  seconds(elapsed: RawBuilder<unknown>): RawBuilder<number | null>;
  /** Value of a key in a column of JSON text (an object of strings). Null if the key is missing. */
  textAt(object: RawBuilder<unknown>, key: string): RawBuilder<string | null>;
  /** Value of a key in a column written by `bindMetrics`. Null if the key is missing or the value is NaN. */
  numberAt(metrics: RawBuilder<unknown>, key: string): RawBuilder<number | null>;
  /** Group size that a run's plan sets for a kind of stage; 0 if unset. */
  plannedGroupSize(plan: RawBuilder<unknown>, kind: RawBuilder<unknown>): RawBuilder<bigint>;
  /** Expands a map of metrics: a table to join with, and the name and number of each of its rows (null for NaN). */
  pairs(metrics: RawBuilder<unknown>): {
    readonly table: RawBuilder<unknown>;
    readonly name: RawBuilder<string>;
    readonly number: RawBuilder<number | null>;
  };
  /** Expands `segments.metric_sums`: a table to join with, and the columns of each of its rows. */
  metricSums(sums: RawBuilder<unknown>): {
    readonly table: RawBuilder<unknown>;
    readonly name: RawBuilder<string>;
    readonly total: RawBuilder<number | null>;
    readonly least: RawBuilder<number>;
    readonly most: RawBuilder<number>;
  };
  /** Whether a text, or a value of an object of strings as JSON text, contains a part without capitals of ASCII. */
  containsText(text: RawBuilder<unknown>, object: RawBuilder<unknown>, part: string): RawBuilder<SqlBool>;
  /** Text to group by, compared by bytes, which is faster than the collation of the database. */
  bytewise(text: RawBuilder<unknown>): RawBuilder<string>;
}

/**
 * Beyond this magnitude, a sum of squares could overflow a double, which one engine rejects and the other hides. If
 * such rewards exist, all rewards are read instead.
 */
export const IMMENSE = 1e140;
/** The same limit for plain sums. */
export const IMMENSE_SUM = 1e300;
