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

type Columns = Readonly<Record<string, Column<unknown, unknown>>>;

/** Description of a table, and the only list of its columns. The migrations define the schema; a test compares both. */
export interface Table<Described extends Columns = Columns> {
  readonly name: string;
  readonly columns: Described;
  /**
   * The columns in the order of the description, without assigned ones. Statements that write rows in bulk name them in
   * this order.
   */
  readonly order: readonly NamedColumn[];
}

export interface NamedColumn {
  readonly name: string;
  readonly type: PostgresType;
  readonly source?: Column<unknown, unknown>['source'];
  readonly form?: Column<unknown, unknown>['form'];
}

export function table<Described extends Columns>(name: string, columns: Described): Table<Described> {
  const all = Object.entries(columns).map(([column, { type, source, form }]): NamedColumn => {
    return { name: column, type, ...(source && { source }), ...(form && { form }) };
  });
  return { name, columns, order: all.filter(({ source }) => source !== 'assigned') };
}

/**
 * Returns the SQL of the values of a new row. `given` returns the SQL of what the row in memory has in a column,
 * `states` is the table of states.
 */
export function valuesText({ order }: Table, states: string, given: (name: string, index: number) => string): string {
  const namespace = given(
    'namespace',
    order.findIndex(({ name }) => name === 'namespace'),
  );
  const values = order.map(({ name, source }, i) => {
    if (source !== 'state key') return given(name, i);
    // Null if there is no such state, which the column rejects.
    return `(select key from ${states} as s where s.namespace = ${namespace} and s.digest = ${given(name, i)})`;
  });
  return values.join(', ');
}

/** Returns the names of columns for a statement. */
export function namesOf(columns: readonly NamedColumn[]): string {
  return columns.map(({ name }) => name).join(', ');
}

/** Any row that is written in bulk, by column. */
export type Row = Readonly<Record<string, unknown>>;

/** Returns the values of a row in the order of the columns. */
export function valuesOf(row: Row, columns: readonly NamedColumn[]): unknown[] {
  const values = new Array<unknown>(columns.length);
  for (let i = 0; i < values.length; i += 1) values[i] = row[columns[i]!.name];
  return values;
}

/** Types of the columns in queries. */
export type TypeOf<T extends Table> = {
  [Name in keyof T['columns']]: T['columns'][Name] extends Column<infer Typed, unknown> ? Typed : never;
};

/** A row for `BulkRows.insert`. It has every column, also those with a default, but none that is assigned. */
export type RowOf<T extends Table> = {
  readonly [Name in keyof T['columns'] as T['columns'][Name] extends Column<unknown, never>
    ? never
    : Name]: T['columns'][Name] extends Column<unknown, infer Value> ? Value : never;
};

type NameIn<T extends Table> = Extract<keyof RowOf<T>, string>;

/** An update of many rows at once: `keys` find a row, and `columns` are set. */
export interface RowUpdate<Updated extends Row = Row> {
  readonly table: string;
  readonly keys: readonly NamedColumn[];
  readonly columns: readonly NamedColumn[];
  /** For the compiler only; never set. */
  readonly row?: Updated;
}

export function rowUpdate<T extends Table, const Key extends NameIn<T>, const Name extends NameIn<T>>(
  { name, order }: T,
  keys: readonly Key[],
  columns: readonly Name[],
): RowUpdate<Pick<RowOf<T>, Key | Name>> {
  const among = (names: readonly string[]) => order.filter((column) => names.includes(column.name));
  return { table: name, keys: among(keys), columns: among(columns) };
}

/** A row for `BulkRows.update`: the keys and all columns of the update. */
export type UpdateOf<U extends RowUpdate> = U extends RowUpdate<infer Updated> ? Updated : never;
