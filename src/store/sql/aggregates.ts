import type { RawBuilder } from 'kysely';

/** What sums up rows, where engines say it in words of their own. Nothing that is null is in it; without anything they are null. */
export interface Aggregates {
  /** The sum of squares around the mean. */
  squares(value: RawBuilder<unknown>): RawBuilder<number | null>;
  median(value: RawBuilder<unknown>): RawBuilder<number | null>;
  /** How long it is from one time column to another, as the engine says it, to a millisecond at least. */
  elapsed(from: RawBuilder<unknown>, to: RawBuilder<unknown>): RawBuilder<unknown>;
  /** The seconds of what has elapsed, summed up. */
  seconds(elapsed: RawBuilder<unknown>): RawBuilder<number | null>;
  /** What an object of JSON text, its values strings, has under a key; null: nothing. */
  textAt(object: RawBuilder<unknown>, key: string): RawBuilder<string | null>;
  /** What a map of metrics, as `bindMetrics` has it, has under a key; null: nothing, or NaN. */
  numberAt(metrics: RawBuilder<unknown>, key: string): RawBuilder<number | null>;
  /** The group size that a run's plan has for a kind of stages; 0: none. */
  plannedGroupSize(plan: RawBuilder<unknown>, kind: RawBuilder<unknown>): RawBuilder<bigint>;
  /** Every entry of a map of metrics: a table to join with, and of each row the name and the number (null for NaN). */
  pairs(metrics: RawBuilder<unknown>): {
    readonly table: RawBuilder<unknown>;
    readonly name: RawBuilder<string>;
    readonly number: RawBuilder<number | null>;
  };
  /** A text to group by, compared by its bytes, which is quick. */
  bytewise(text: RawBuilder<unknown>): RawBuilder<string>;
}
