import { type AliasedRawBuilder, type RawBuilder, sql } from 'kysely';
import type { View } from '../../../contract/request.ts';
import type { Table } from './table.ts';

type NameIn<T extends Table> = Extract<keyof T['columns'], string>;
type JsonIn<T extends Table> = Extract<NameIn<T>, `${string}_json`>;

/** A column under the alias of its table, or a JSON column of a view. */
type Selected<T extends Table, Alias extends string, Except extends string> =
  | `${Alias}.${Exclude<NameIn<T>, JsonIn<T> | Except>}`
  | AliasedRawBuilder<string, Exclude<JsonIn<T>, Except>>;

/**
 * Returns what a query selects of a table: all columns except some, so that a new column is read. The `…_json` columns
 * can be large, so the BASIC view does not read them: they are empty.
 */
export function columnsIn<T extends Table, const Alias extends string, const Except extends NameIn<T> = never>(
  { order }: T,
  alias: Alias,
  view: View,
  except: readonly Except[],
): Selected<T, Alias, Except>[] {
  const left: readonly string[] = except;
  const selected = order
    .filter(({ name }) => !left.includes(name))
    .map(({ name }) => {
      if (!name.endsWith('_json')) return `${alias}.${name}`;
      return (view === 'FULL' ? sql<string>`${sql.ref(`${alias}.${name}`)}` : sql<string>`''`).as(name);
    });
  return selected as Selected<T, Alias, Except>[];
}

/** Returns the columns that an upsert of complete rows sets in existing rows: all except some. */
export function overwritten<T extends Table, const Except extends NameIn<T>>(
  { order }: T,
  except: readonly Except[],
): Readonly<Record<Exclude<NameIn<T>, Except>, RawBuilder<never>>> {
  const left: readonly string[] = except;
  const names = order.map(({ name }) => name).filter((name) => !left.includes(name));
  const set: Record<string, RawBuilder<never>> = Object.fromEntries(
    names.map((name) => [name, sql<never>`${sql.ref(`excluded.${name}`)}`]),
  );
  return set as Readonly<Record<Exclude<NameIn<T>, Except>, RawBuilder<never>>>;
}
