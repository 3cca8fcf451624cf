import { type RawBuilder, type SqlBool, sql } from 'kysely';
import type { Instant } from '../../../domain/instant.ts';
import type { ListSort, Sorted, SortValue } from '../../../domain/list_order.ts';
import type { Page } from '../../contract/request.ts';
import type { Engine } from './engine.ts';
import { bindTimeBound } from './values.ts';

/** The columns of the listed rows. */
export interface ListColumns {
  readonly key: string;
  readonly name: string;
  readonly updateTime: string;
  readonly reward: string;
  readonly labels: string;
}

/** Returns the terms of an order, and the condition for the rows after the cursor. */
export function listOrder(
  engine: Engine,
  columns: ListColumns,
  { after, sort = { by: 'CREATION', ascending: false }, value }: Page<bigint> & Sorted,
): { readonly terms: RawBuilder<unknown>; readonly follows: RawBuilder<SqlBool> | undefined } {
  const direction = sql.raw(sort.ascending ? 'asc' : 'desc');
  const beyond = sql.raw(sort.ascending ? '>' : '<');
  const key = sql.ref(columns.key);
  const keyFollows = after === undefined ? undefined : sql<SqlBool>`${key} ${beyond} ${after}`;
  if (sort.by === 'CREATION') return { terms: sql`${key} ${direction}`, follows: keyFollows };
  const column = columnOf(engine, columns, sort.by);
  const isLast = sort.by === 'REWARD' ? isNoNumber(column) : undefined;
  const terms = [...(isLast === undefined ? [] : [sql`${isLast} asc`]), sql`${column} ${direction}`];
  return {
    terms: sql.join([...terms, sql`${key} ${direction}`]),
    follows: keyFollows && rowsAfter({ column, beyond, isLast, keyFollows }, value),
  };
}

interface Terms {
  readonly column: RawBuilder<unknown>;
  readonly beyond: RawBuilder<unknown>;
  /** 1 for rows that are last in both directions. Undefined if there are none. */
  readonly isLast: RawBuilder<number> | undefined;
  readonly keyFollows: RawBuilder<SqlBool>;
}

function rowsAfter({ column, beyond, isLast, keyFollows }: Terms, value: SortValue): RawBuilder<SqlBool> {
  if (value === undefined) return sql`(${isLast ?? sql`1`} = 1 and ${keyFollows})`;
  const bound = typeof value === 'bigint' ? bindTimeBound(value) : value;
  const inside = sql`(${column} ${beyond} ${bound} or (${column} = ${bound} and ${keyFollows}))`;
  return isLast === undefined ? sql`${inside}` : sql`(${isLast} = 1 or ${inside})`;
}

function columnOf(engine: Engine, columns: ListColumns, by: ListSort['by']): RawBuilder<unknown> {
  if (by === 'NAME') return engine.aggregates.bytewise(sql.ref(columns.name));
  return sql.ref(by === 'REWARD' ? columns.reward : columns.updateTime);
}

/** SQLite stores NaN as text; engines differ in where they sort null. */
function isNoNumber(column: RawBuilder<unknown>): RawBuilder<number> {
  return sql`case when ${column} is null or ${column} = 'NaN' then 1 else 0 end`;
}

/** Condition that the name or the value of a label contains a text. Only letters of ASCII match in both cases. */
export function containsText(engine: Engine, { name, labels }: ListColumns, text: string): RawBuilder<SqlBool> {
  const folded = text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
  return engine.aggregates.containsText(sql.ref(name), sql.ref(labels), folded);
}

interface LabelsAndTimes {
  readonly labels?: ReadonlyMap<string, string> | undefined;
  readonly createTimeFrom?: Instant | undefined;
  readonly createTimeTo?: Instant | undefined;
}

/** Returns the conditions of a filter on the labels and the create times of the rows with this alias. */
export function labelsAndTimes(
  engine: Pick<Engine, 'sql'>,
  alias: string,
  { labels, createTimeFrom, createTimeTo }: LabelsAndTimes,
): RawBuilder<SqlBool>[] {
  const time = sql.ref(`${alias}.create_time`);
  const conditions = [...(labels ?? [])].map(([key, value]) => {
    return sql<SqlBool>`${engine.sql.hasPair(sql.ref<string>(`${alias}.labels`), key, value)}`;
  });
  if (createTimeFrom !== undefined) conditions.push(sql<SqlBool>`${time} >= ${bindTimeBound(createTimeFrom)}`);
  if (createTimeTo !== undefined) conditions.push(sql<SqlBool>`${time} < ${bindTimeBound(createTimeTo)}`);
  return conditions;
}
