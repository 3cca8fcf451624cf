import { type RawBuilder, sql } from 'kysely';

/** The values of a combination, as the columns v0, v1, … */
export interface ValueColumns {
  readonly [value: `v${number}`]: string;
}

/** Selects the values as the columns v0, v1, … */
export function columnsOf(values: readonly RawBuilder<unknown>[]): RawBuilder<unknown> {
  return sql.join(
    values.map((value, i) => sql`${value} as ${sql.ref(`v${i}`)}, `),
    sql``,
  );
}

export function groupedBy(columns: readonly RawBuilder<unknown>[]): RawBuilder<unknown> {
  return columns.length === 0 ? sql`` : sql`group by ${sql.join(columns)}`;
}

/** References to the columns of the values. */
export function places(values: readonly RawBuilder<unknown>[]): RawBuilder<unknown>[] {
  return values.map((_, i) => sql.ref(`v${i}`));
}

export function valuesOf(row: ValueColumns, count: number): string[] {
  return Array.from({ length: count }, (_, i) => row[`v${i}`] ?? '');
}

/** A key for the combination of values in a row. */
export function combinationOf(row: ValueColumns, count: number): string {
  return JSON.stringify(valuesOf(row, count));
}
