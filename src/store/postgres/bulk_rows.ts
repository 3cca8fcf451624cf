import { tupleKey } from '../../domain/tuple_key.ts';
import type { BulkRows, Tx } from '../sql/kit/engine.ts';
import {
  type NamedColumn,
  namesOf,
  type Row,
  type RowUpdate,
  type Table,
  valuesOf,
  valuesText,
} from '../sql/kit/tables/table.ts';
import { encodeCopy } from './copy.ts';
import { SCHEMA } from './schema.ts';
import type { OpenTransactions, PipelinedTransaction } from './transactions.ts';

/** Rows of one insert statement are powers of two up to this number, so that few statement texts serve all sizes. */
const MAX_ROWS = 64;

/** From this number of rows on, a COPY costs less than prepared inserts, although it is parsed each time. */
const WORTH_COPYING = 16;

export class PostgresBulkRows implements BulkRows {
  readonly #open: OpenTransactions;

  constructor(open: OpenTransactions) {
    this.#open = open;
  }

  async insert(tx: Tx, table: Table, rows: readonly Row[], onConflict?: string): Promise<void> {
    const pipeline = this.#open.of(tx);
    if (table.order.some(({ source }) => source !== undefined)) insertLookedUp(pipeline, table, rows);
    else if (rows.length < WORTH_COPYING || onConflict !== undefined) insertInChunks(pipeline, table, rows, onConflict);
    else {
      const text = `copy ${SCHEMA}.${table.name} (${namesOf(table.order)}) from stdin (format binary)`;
      pipeline.copy(text, encodeCopy(table.order, rows));
    }
  }

  async update(tx: Tx, update: RowUpdate, rows: readonly Row[]): Promise<void> {
    if (rows.length === 0) return;
    this.#open.of(tx).send(updateText(update), columnsOf(rows, [...update.keys, ...update.columns]));
  }
}

/** One statement for any number of rows. */
function insertLookedUp(pipeline: PipelinedTransaction, table: Table, rows: readonly Row[]): void {
  if (rows.length === 0) return;
  const { name: into, order } = table;
  const arrays = order.map(({ type, source }, i) => `$${i + 1}::${source === undefined ? type : 'bytea'}[]`);
  const values = valuesText(table, `${SCHEMA}.states`, (name) => `v.${name}`);
  const text = `insert into ${SCHEMA}.${into} (${namesOf(order)}) select ${values} from unnest(${arrays.join(', ')}) as v (${namesOf(order)})`;
  pipeline.send(text, columnsOf(rows, order));
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

/** Returns the parameters for `unnest`. */
export function columnsOf(rows: readonly Row[], columns: readonly NamedColumn[]): unknown[][] {
  return columns.map(({ name }) => rows.map((row) => row[name]));
}

const insertTexts = new Map<string, string>();

function insertText({ name, order }: Table, count: number, onConflict = ''): string {
  const key = tupleKey(name, count, onConflict);
  let text = insertTexts.get(key);
  if (text === undefined) {
    const rows = Array.from(
      { length: count },
      (_, row) => `(${order.map((_column, i) => `$${row * order.length + i + 1}`).join(', ')})`,
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
  const arrays = all.map(({ type }, i) => `$${i + 1}::${type}[]`).join(', ');
  const set = columns.map(({ name }) => `${name} = v.${name}`).join(', ');
  const where = keys.map(({ name }) => `t.${name} = v.${name}`).join(' and ');
  const text = `update ${SCHEMA}.${table} as t set ${set} from unnest(${arrays}) as v (${namesOf(all)}) where ${where}`;
  updateTexts.set(update, text);
  return text;
}
