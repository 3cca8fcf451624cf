import { tupleKey } from '../../domain/tuple_key.ts';
import type { PostgresType } from '../sql/tables/column.ts';
import { namesOf, type Row, type RowUpdate, type Table, valuesOf, valuesText } from '../sql/tables/table.ts';
import { encodeCopy } from './copy.ts';
import { SCHEMA } from './schema.ts';
import type { PipelinedTransaction } from './transaction.ts';

/** Rows of one insert statement are powers of two up to this number, so that few statement texts serve all sizes. */
const MAX_ROWS = 64;

/** From this number of rows on, a COPY costs less than prepared inserts, although it is parsed each time. */
const WORTH_COPYING = 16;

export function insertRows(
  pipeline: PipelinedTransaction,
  table: Table,
  rows: readonly Row[],
  onConflict: string | undefined,
): void {
  const isPlain = onConflict === undefined && table.order.every(({ source }) => source === undefined);
  if (rows.length < WORTH_COPYING || !isPlain) insertInChunks(pipeline, table, rows, onConflict);
  else {
    const text = `copy ${SCHEMA}.${table.name} (${namesOf(table.order)}) from stdin (format binary)`;
    pipeline.copy(text, encodeCopy(table.order, rows));
  }
}

function insertInChunks(
  pipeline: PipelinedTransaction,
  table: Table,
  rows: readonly Row[],
  onConflict: string | undefined,
): void {
  for (let at = 0; at < rows.length; ) {
    const count = Math.min(MAX_ROWS, 2 ** Math.floor(Math.log2(rows.length - at)));
    const values = rows.slice(at, at + count).flatMap((row) => valuesOf(row, table.order));
    pipeline.send(insertText(table, count, onConflict), values);
    at += count;
  }
}

export function updateRows(pipeline: PipelinedTransaction, update: RowUpdate, rows: readonly Row[]): void {
  if (rows.length === 0) return;
  const values = [...update.keys, ...update.columns].map(({ name }) => rows.map((row) => row[name]));
  pipeline.send(updateText(update), values);
}

const insertTexts = new Map<string, string>();

function insertText(table: Table, count: number, onConflict = ''): string {
  const { name, order } = table;
  const key = tupleKey(name, count, onConflict);
  let text = insertTexts.get(key);
  if (text === undefined) {
    const rows = Array.from({ length: count }, (_, row) =>
      valuesText(table, `${SCHEMA}.states`, (i) => `$${row * order.length + i + 1}`),
    );
    text = `insert into ${SCHEMA}.${name} (${namesOf(order)}) values ${rows.join(', ')}${onConflict}`;
    insertTexts.set(key, text);
  }
  return text;
}

const updateTexts = new WeakMap<RowUpdate, string>();

function updateText(update: RowUpdate): string {
  const kept = updateTexts.get(update);
  if (kept !== undefined) return kept;
  const { table, keys, columns } = update;
  const all = [...keys, ...columns];
  const arrays = all.map(({ type }, i) => `$${i + 1}::${ARRAY_TYPES[type]}`).join(', ');
  const set = columns.map(({ name }) => `${name} = v.${name}`).join(', ');
  const where = keys.map(({ name }) => `t.${name} = v.${name}`).join(' and ');
  const text = `update ${SCHEMA}.${table} as t set ${set} from unnest(${arrays}) as v (${namesOf(all)}) where ${where}`;
  updateTexts.set(update, text);
  return text;
}

const ARRAY_TYPES: Readonly<Record<PostgresType, string>> = {
  int8: 'bigint[]',
  float8: 'double precision[]',
  bool: 'boolean[]',
  text: 'text[]',
  bytea: 'bytea[]',
  timestamptz: 'timestamptz[]',
  uuid: 'uuid[]',
};
