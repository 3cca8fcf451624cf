import { sql } from 'kysely';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openPostgres } from '../../src/store/postgres/open.ts';
import type { Engine } from '../../src/store/sql/engine.ts';
import type { PostgresType } from '../../src/store/sql/tables/column.ts';
import { type Row, rowUpdate, type Table } from '../../src/store/sql/tables/table.ts';
import { TABLES } from '../../src/store/sql/tables.ts';
import { isSet } from '../../src/store/sql/values.ts';
import { openSqlite } from '../../src/store/sqlite/open.ts';
import { createDatabase, ENGINES, type TestDatabase } from '../support/database.ts';
import { logger } from './on_store.ts';
import { sqlitePath } from './sql.ts';

const NAMES = Object.keys(TABLES) as (keyof typeof TABLES)[];
/** Postgres inserts few rows by prepared statements, and many by COPY. */
const FEW = 2;
const MANY = 20;

/** Values that are distinct and ordered like the numbers. */
const SAMPLES: Readonly<Record<PostgresType, (number: number) => unknown>> = {
  int8: (number) => 2n ** 40n + BigInt(number),
  float8: (number) => number + 0.25,
  bool: (number) => number % 2,
  text: (number) => `text ∆ ${String(number).padStart(6, '0')}`,
  uuid: (number) => `00000000-0000-4000-8000-${String(number).padStart(12, '0')}`,
  bytea: (number) => Buffer.from(`bytes ${number}`),
  timestamptz: (number) => `2026-11-21T12:15:00.${String(number).padStart(6, '0')}Z`,
};

let lastNumber = 0;

function sampleRow({ columns }: Table): Record<string, unknown> {
  lastNumber += 1;
  return Object.fromEntries(Object.entries(columns).map(([name, { type }]) => [name, SAMPLES[type](lastNumber)]));
}

function samples(table: Table, count: number): Record<string, unknown>[] {
  return Array.from({ length: count }, () => sampleRow(table));
}

/** A row in which every column that may be null is null. */
function emptyRow(table: Table): Record<string, unknown> {
  const row = sampleRow(table);
  for (const [name, { nullable }] of Object.entries(table.columns)) if (nullable) row[name] = null;
  return row;
}

/** The values as they are bound, because the engines read some of them as other types. */
function boundAgain(table: Table, row: Row): Row {
  const bind = (type: PostgresType, value: unknown) => {
    if (value === null) return null;
    if (type === 'bool') return isSet(value as boolean | bigint) ? 1 : 0;
    return type === 'bytea' ? Buffer.from(value as Uint8Array) : value;
  };
  return Object.fromEntries(Object.entries(table.columns).map(([name, { type }]) => [name, bind(type, row[name])]));
}

describe.each(ENGINES)('rows written in bulk, on %s', (name) => {
  let database: TestDatabase;
  let engine: Engine;
  beforeAll(async () => {
    database = await createDatabase(name);
    const fail = (error: unknown) => {
      throw error;
    };
    engine =
      name === 'sqlite'
        ? await openSqlite(sqlitePath(database), fail)
        : await openPostgres({ url: database.url }, logger, fail);
  });
  afterAll(async () => {
    await engine?.close();
    await database?.drop();
  });

  it.each(NAMES)('%s: every column of inserted and updated rows is stored', async (tableName) => {
    const table: Table = TABLES[tableName];
    const [key = '', ...others] = table.order.map((column) => column.name);
    const few = [emptyRow(table), ...samples(table, FEW)];
    const many = [emptyRow(table), ...samples(table, MANY)];
    await engine.write(async (tx) => {
      await engine.insertRows(tx, table, few);
      await engine.insertRows(tx, table, many);
    });
    const inserted = [...few, ...many];
    expect(await read(table, key)).toEqual(inserted);
    const changes = few.map((row) => ({ ...sampleRow(table), [key]: row[key] }));
    await engine.write((tx) => engine.updateRows(tx, rowUpdate(table, [key], others), changes));
    expect(await read(table, key)).toEqual([...changes, ...many]);
  });

  async function read(table: Table, key: string): Promise<Row[]> {
    const { rows } = await sql<Row>`select * from ${engine.table(table.name as keyof typeof TABLES)}
      order by ${sql.ref(key)}`.execute(engine.db);
    return rows.map((row) => boundAgain(table, row));
  }
});
