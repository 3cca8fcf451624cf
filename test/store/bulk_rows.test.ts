import { sql } from 'kysely';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openPostgres } from '../../src/store/postgres/open.ts';
import type { StoreEngine } from '../../src/store/sql/engine.ts';
import { STATES } from '../../src/store/sql/kit/tables/states.ts';
import {
  type NamedColumn,
  type PostgresType,
  type Row,
  rowUpdate,
  type Table,
} from '../../src/store/sql/kit/tables/table.ts';
import { TABLES } from '../../src/store/sql/kit/tables.ts';
import { isSet } from '../../src/store/sql/kit/values.ts';
import { openSqlite } from '../../src/store/sqlite/open.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { logger } from './on_store.ts';
import { sqlitePath } from './sql.ts';

const NAMES = Object.keys(TABLES) as (keyof typeof TABLES)[];
/** Postgres inserts few rows by prepared statements, and many by COPY. */
const FEW = 2;
const MANY = 20;

/** Values that are distinct and ordered like the numbers. */
const SAMPLES: Readonly<Record<PostgresType | 'state key', (number: number) => unknown>> = {
  'state key': (number) => Buffer.from(`state ${number}`),
  int8: (number) => 2n ** 40n + BigInt(number),
  float8: (number) => number + 0.25,
  bool: (number) => number % 2,
  text: (number) => `text ∆ ${String(number).padStart(6, '0')}`,
  uuid: (number) => `00000000-0000-4000-8000-${String(number).padStart(12, '0')}`,
  bytea: (number) => Buffer.from(`bytes ${number}`),
  timestamptz: (number) => `2026-11-21T12:15:00.${String(number).padStart(6, '0')}Z`,
};

let lastNumber = 0;

function sampleRow({ order }: Table): Record<string, unknown> {
  lastNumber += 1;
  return Object.fromEntries(order.map((column) => [column.name, SAMPLES[kindOf(column)](lastNumber)]));
}

/** A row in memory has the digest of a state in place of its key. */
function kindOf({ type, source }: NamedColumn): keyof typeof SAMPLES {
  return source === 'state key' ? source : type;
}

function samples(table: Table, count: number): Record<string, unknown>[] {
  return Array.from({ length: count }, () => sampleRow(table));
}

/** A row in which every column that may be null is null. */
function emptyRow(table: Table): Record<string, unknown> {
  const row = sampleRow(table);
  for (const { name } of table.order) if (table.columns[name]!.nullable) row[name] = null;
  return row;
}

/** The values as they are bound, because the engines read some of them as other types. */
function boundAgain(table: Table, row: Row): Row {
  const bind = (kind: keyof typeof SAMPLES, value: unknown) => {
    if (value === null) return null;
    if (kind === 'bool') return isSet(value as boolean | bigint) ? 1 : 0;
    return kind === 'bytea' || kind === 'state key' ? Buffer.from(value as Uint8Array) : value;
  };
  return Object.fromEntries(table.order.map((column) => [column.name, bind(kindOf(column), row[column.name])]));
}

describe.each(ENGINES)('rows written in bulk, on %s', (name) => {
  let database: TestDatabase;
  let engine: StoreEngine;
  beforeAll(async () => {
    database = await createMigratedDatabase(name);
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
    const [key = '', ...others] = table.order.filter(({ source }) => source === undefined).map((column) => column.name);
    const looked = table.order.find(({ source }) => source === 'state key');
    const few = [emptyRow(table), ...samples(table, FEW)];
    const many = [emptyRow(table), ...samples(table, MANY)];
    await engine.transactions.run(async (tx) => {
      await tx.deleteFrom(tableName).execute(); // the schema begins with a token key
      for (const row of looked === undefined ? [] : [...few, ...many]) {
        const state = { ...sampleRow(STATES), namespace: row.namespace, digest: row[looked!.name] };
        await engine.bulk.insert(tx, STATES as Table, [state]);
      }
      await engine.bulk.insert(tx, table, few);
      await engine.bulk.insert(tx, table, many);
    });
    const inserted = [...few, ...many];
    expect(await read(table, key)).toEqual(inserted);
    const kept = (row: Row) => (looked === undefined ? {} : { [looked.name]: row[looked.name] });
    const changes = few.map((row) => ({ ...sampleRow(table), ...kept(row), [key]: row[key] }));
    await engine.transactions.run((tx) => engine.bulk.update(tx, rowUpdate(table, [key], others), changes));
    expect(await read(table, key)).toEqual([...changes, ...many]);
    if (looked !== undefined) await engine.transactions.run((tx) => tx.deleteFrom('states').execute());
  });

  async function read(table: Table, key: string): Promise<Row[]> {
    const columns = table.order.map(({ name, source }) =>
      source === 'state key'
        ? sql`(select digest from ${engine.sql.table('states')} where key = t.${sql.ref(name)}) as ${sql.ref(name)}`
        : sql`t.${sql.ref(name)}`,
    );
    const { rows } =
      await sql<Row>`select ${sql.join(columns)} from ${engine.sql.table(table.name as keyof typeof TABLES)} as t
      order by ${sql.ref(key)}`.execute(engine.db);
    return rows.map((row) => boundAgain(table, row));
  }
});
