import type { Column, PostgresType } from './column.ts';

type Columns = Readonly<Record<string, Column<unknown, unknown>>>;

/** Description of a table, and the only list of its columns. The migrations define the schema; a test compares both. */
export interface Table<Described extends Columns = Columns> {
  readonly name: string;
  readonly columns: Described;
  /** The columns in the order of the description. */
  readonly order: readonly NamedColumn[];
}

export interface NamedColumn {
  readonly name: string;
  readonly type: PostgresType;
}

export function table<Described extends Columns>(name: string, columns: Described): Table<Described> {
  return { name, columns, order: Object.entries(columns).map(([column, { type }]) => ({ name: column, type })) };
}

/** Types of the columns in queries. */
export type TypeOf<T extends Table> = {
  [Name in keyof T['columns']]: T['columns'][Name] extends Column<infer Typed, unknown> ? Typed : never;
};
