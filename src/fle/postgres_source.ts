import pg from 'pg';
import {
  type Cell,
  FleImportError,
  type FleSource,
  HEAD_COLUMNS,
  HEAD_PAGE_ROWS,
  inOrder,
  quoteName,
  type Row,
  requireColumns,
} from './source.ts';

const CONNECT_MS = 10_000;

/** Returns values as text, in the form that Postgres writes. */
const AS_TEXT = { getTypeParser: () => (text: string) => text } as unknown as pg.CustomTypesConfig;

/** Makes the session read-only, with an exact text form of every value. */
const SESSION = `SET default_transaction_read_only = on; SET extra_float_digits = 3; SET bytea_output = 'hex';
  SET DateStyle = 'ISO'; SET TimeZone = 'UTC'`;

interface Column {
  readonly name: string;
  readonly type: string;
}

/** Connects to a database of FLE. `description` must not contain the password. */
export async function openPostgresSource(url: string, description: string): Promise<FleSource> {
  const client = new pg.Client({
    connectionString: url,
    connectionTimeoutMillis: CONNECT_MS,
    keepAlive: true,
    application_name: 'anabranch import-fle',
    types: AS_TEXT,
  });
  client.on('error', () => undefined); // a lost connection also fails the query that uses it
  try {
    await client.connect();
    await client.query(SESSION);
    const { rows: columns } = await client.query<Column>(
      `SELECT attname AS name, format_type(atttypid, NULL) AS type FROM pg_attribute
       WHERE attrelid = to_regclass('programs') AND attnum > 0 AND NOT attisdropped ORDER BY attnum`,
    );
    requireColumns(
      columns.map(({ name }) => name),
      description,
    );
    return new PostgresSource(client, columns, description);
  } catch (error) {
    await client.end().catch(() => undefined);
    throw explained(error, description);
  }
}

class PostgresSource implements FleSource {
  readonly description: string;
  readonly #client: pg.Client;
  readonly #columns: readonly Column[];
  /** The previous query: a connection executes one query at a time. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(client: pg.Client, columns: readonly Column[], description: string) {
    this.#client = client;
    this.#columns = columns;
    this.description = description;
  }

  async *readHeads(): AsyncGenerator<Row> {
    const names: readonly string[] = HEAD_COLUMNS;
    const columns = this.#columns.filter(({ name }) => names.includes(name));
    let after: bigint | number | undefined;
    for (;;) {
      const values = after === undefined ? [] : [String(after)];
      const condition = after === undefined ? '' : 'WHERE id > $1';
      const rows = await this.#read(columns, `${condition} ORDER BY id LIMIT ${HEAD_PAGE_ROWS}`, values);
      yield* rows;
      const last = rows.at(-1)?.get('id')?.value;
      if (rows.length < HEAD_PAGE_ROWS || (typeof last !== 'bigint' && typeof last !== 'number')) return;
      after = last;
    }
  }

  async readRows(ids: readonly number[]): Promise<readonly Row[]> {
    const rows = await this.#read(this.#columns, 'WHERE id = ANY ($1::bigint[])', [`{${ids.join()}}`]);
    return inOrder(new Map(rows.map((row) => [Number(row.get('id')?.value), row])), ids, this.description);
  }

  async close(): Promise<void> {
    await this.#client.end().catch(() => undefined); // nothing was written that could be lost
  }

  #read(columns: readonly Column[], condition: string, values: readonly string[]): Promise<Row[]> {
    const read = this.#last.then(() => this.#query(columns, condition, values));
    this.#last = read.catch(() => undefined);
    return read;
  }

  async #query(columns: readonly Column[], condition: string, values: readonly string[]): Promise<Row[]> {
    const text = `SELECT ${columns.map(({ name }) => quoteName(name)).join(', ')} FROM programs ${condition}`;
    try {
      const { rows } = await this.#client.query<(string | null)[]>({ text, values: [...values], rowMode: 'array' });
      return rows.map((row) => new Map(columns.map(({ name, type }, i) => [name, toCell(type, row[i] ?? null)])));
    } catch (error) {
      throw explained(error, this.description);
    }
  }
}

const WHOLE = new Set(['smallint', 'integer', 'bigint']);
const REAL = new Set(['real', 'double precision']);

function toCell(type: string, text: string | null): Cell {
  if (text === null) return { type: 'null', value: null };
  if (WHOLE.has(type)) return { type, value: BigInt(text) };
  if (REAL.has(type)) return { type, value: Number(text) };
  if (type === 'bytea') return { type, value: new Uint8Array(Buffer.from(text.slice(2), 'hex')) };
  return { type, value: new TextEncoder().encode(text) };
}

function explained(error: unknown, description: string): unknown {
  if (!(error instanceof Error) || error instanceof FleImportError) return error;
  // Node reports several failed addresses as an AggregateError without a message.
  const causes = error instanceof AggregateError ? error.errors.map(String) : [];
  return new FleImportError(
    `${description} cannot be read: ${error.message || causes.join('; ')}. Check its URL, and the rights of its role.`,
  );
}
