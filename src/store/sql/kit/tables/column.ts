import type { ColumnType } from 'kysely';
import type { Form } from './forms.ts';

/** Postgres types of columns. SQLite stores times and uuids as text. */
export type PostgresType = 'int8' | 'float8' | 'bool' | 'text' | 'bytea' | 'timestamptz' | 'uuid';

/**
 * A column of a table. `Typed` is its type in queries, and `Value` its type in rows that are written in bulk
 * (`RowOf`).
 */
export interface Column<Typed, Value> {
  readonly type: PostgresType;
  readonly nullable: boolean;
  /** Inserts of single rows may omit the column, because the schema has a default. */
  readonly hasDefault: boolean;
  /**
   * How a row that is written in bulk gets its value, if not from the row itself:
   * - `assigned`: the database assigns it.
   * - `state key`: the row has a digest, and gets the row key of the state with this digest in its namespace.
   */
  readonly source?: 'assigned' | 'state key';
  /** The values that it may have. Row keys and flags have none. */
  readonly form?: Form;
  /** For the compiler only; never set. */
  readonly types?: { readonly typed: Typed; readonly value: Value };
}

function column<Typed, Value>(type: PostgresType): Column<Typed, Value> {
  return { type, nullable: false, hasDefault: false };
}

/** Integers are bigint in both directions. Queries may also bind small ones as numbers. */
export const int = column<ColumnType<bigint, bigint | number, bigint | number>, bigint>('int8');
/** Written with `bindReal` and read with `readReal`. NaN is the text `NaN`, because SQLite would store NULL (W11). */
export const real = column<ColumnType<number | string, number | string, number | string>, number | string>('float8');
/** Bound as 0 or 1, and read with `isSet`, because the engines return different types. */
export const flag = column<ColumnType<boolean | bigint | 0 | 1, 0 | 1, 0 | 1>, 0 | 1>('bool');
/** Row key that the database assigns, in ascending order. */
export const assignedKey: Column<ColumnType<bigint, never, never>, never> = {
  type: 'int8',
  nullable: false,
  hasDefault: false,
  source: 'assigned',
};
/** Row key of a state. Rows that are written in bulk have its digest, and a column `namespace`. */
export const stateKey: Column<ColumnType<bigint, never, never>, Uint8Array> = {
  type: 'int8',
  nullable: false,
  hasDefault: false,
  source: 'state key',
};
export const text = column<ColumnType<string, string, string>, string>('text');
export const uuid = column<ColumnType<string, string, string>, string>('uuid');
export const bytes = column<ColumnType<Uint8Array, Uint8Array, Uint8Array>, Uint8Array>('bytea');
/** ISO text in UTC with six fractional digits on both engines. Queries may also bind `Expressions.now`. */
export const time = column<ColumnType<string, unknown, unknown>, string>('timestamptz');

/** Returns the column with values of this form only. */
export function of<Typed, Value>(plain: Column<Typed, Value>, form: Form): Column<Typed, Value> {
  return { ...plain, form };
}

export function nullable<Select, Insert, Update, Value>({
  types: _,
  ...plain
}: Column<ColumnType<Select, Insert, Update>, Value>): Column<
  ColumnType<Select | null, Insert | null, Update | null>,
  Value | null
> {
  return { ...plain, nullable: true };
}

export function withDefault<Select, Insert, Update, Value>({
  types: _,
  ...plain
}: Column<ColumnType<Select, Insert, Update>, Value>): Column<ColumnType<Select, Insert | undefined, Update>, Value> {
  return { ...plain, hasDefault: true };
}
