import type { BulkRows, Tx } from '../sql/kit/engine.ts';
import { namesOf, type Row, type RowUpdate, type Table, valuesOf, valuesText } from '../sql/kit/tables/table.ts';
import type { Connection } from './connection.ts';

/** A statement that writes one row. */
interface RowStatement {
  readonly text: string;
  /** In the order of the parameters. */
  readonly columns: Table['order'];
}

/** Writes each row with the same prepared statement. */
export class SqliteBulkRows implements BulkRows {
  readonly #writer: Connection;
  readonly #statements = new Map<Table | RowUpdate, RowStatement>();

  constructor(writer: Connection) {
    this.#writer = writer;
  }

  async insert(_tx: Tx, table: Table, rows: readonly Row[], onConflict?: string): Promise<void> {
    this.insertNow(table, rows, onConflict);
  }

  /** Like `insert`, for transactions that wait for nothing. */
  insertNow(table: Table, rows: readonly Row[], onConflict = ''): void {
    if (rows.length > 0) this.#run(this.#statements.get(table) ?? this.#keep(table, insertOf(table)), rows, onConflict);
  }

  async update(_tx: Tx, update: RowUpdate, rows: readonly Row[]): Promise<void> {
    if (rows.length > 0) this.#run(this.#statements.get(update) ?? this.#keep(update, updateOf(update)), rows, '');
  }

  #keep(of: Table | RowUpdate, statement: RowStatement): RowStatement {
    this.#statements.set(of, statement);
    return statement;
  }

  #run({ text, columns }: RowStatement, rows: readonly Row[], end: string): void {
    const statement = this.#writer.prepare(text + end);
    for (const row of rows) statement.run(valuesOf(row, columns));
  }
}

function insertOf(table: Table): RowStatement {
  const values = valuesText(table, 'states', (_, i) => `?${i + 1}`);
  return { text: `insert into ${table.name} (${namesOf(table.order)}) values (${values})`, columns: table.order };
}

function updateOf({ table, keys, columns }: RowUpdate): RowStatement {
  const set = columns.map(({ name }) => `${name} = ?`).join(', ');
  const where = keys.map(({ name }) => `${name} = ?`).join(' and ');
  return { text: `update ${table} set ${set} where ${where}`, columns: [...columns, ...keys] };
}
