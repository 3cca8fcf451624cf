import type { PostgresType } from '../sql/tables/column.ts';
import { type ColumnOf, type StoredTable, TABLES } from '../sql/tables.ts';

/** Returns the types of these columns, in their order. */
export function typesOf<T extends StoredTable>(table: T, columns: readonly ColumnOf<T>[]): PostgresType[] {
  const types = new Map<string, PostgresType>(TABLES[table].order.map(({ name, type }) => [name, type]));
  return columns.flatMap((column) => types.get(column) ?? []);
}

/** How arrays of them are declared. */
export const ARRAY_TYPES: Readonly<Record<PostgresType, string>> = {
  int8: 'bigint[]',
  float8: 'double precision[]',
  bool: 'boolean[]',
  text: 'text[]',
  bytea: 'bytea[]',
  timestamptz: 'timestamptz[]',
  uuid: 'uuid[]',
};
