import type { Column, PostgresType } from './column.ts';

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
