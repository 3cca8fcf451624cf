import type { RawBuilder, SqlBool } from 'kysely';

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
