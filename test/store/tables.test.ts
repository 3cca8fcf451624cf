import pg from 'pg';
import { expect, it } from 'vitest';
import type { Engine, Tx } from '../../src/store/sql/kit/engine.ts';
import { STATE_REFS } from '../../src/store/sql/kit/tables/steps.ts';
import { rowUpdate } from '../../src/store/sql/kit/tables/table.ts';
import { TABLES } from '../../src/store/sql/kit/tables.ts';
import { describeStoreOn } from './on_store.ts';

/** Every column that the migrations made. Kysely alone uses its own tables. */
const COLUMNS = `
  select c.relname as table, a.attname as column, t.typname as type, a.attnotnull as required, a.atthasdef as has_default
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'anabranch'
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  join pg_type t on t.oid = a.atttypid
  where c.relkind in ('r', 'p') and c.relname not like 'kysely%'`;

interface StoredColumn {
  readonly table: string;
  readonly column: string;
  readonly type: string;
  readonly required: boolean;
  readonly has_default: boolean;
}

async function readColumns(url: string): Promise<StoredColumn[]> {
  const client = new pg.Client(url);
  await client.connect();
  try {
    return (await client.query<StoredColumn>(COLUMNS)).rows;
  } finally {
    await client.end();
  }
}

describeStoreOn(['postgres'], 'TABLES', (on) => {
  it('describe every column of every table, with the type and nullability that the migrations give it', async () => {
    const stored = (await readColumns(on.database.url)).map(({ table, column, type, required }) =>
      line(table, column, type, !required),
    );
    const described = Object.entries(TABLES).flatMap(([table, { columns }]) =>
      Object.entries(columns).map(([column, { type, nullable }]) => line(table, column, type, nullable)),
    );
    expect(stored.length).toBeGreaterThan(300);
    expect(described.sort()).toEqual(stored.sort());
  });

  it('let inserts omit only columns that have a default in the schema', async () => {
    const defaults = new Set<string>();
    for (const { table, column, has_default } of await readColumns(on.database.url)) {
      if (has_default) defaults.add(`${table}.${column}`);
    }
    const omissible = Object.entries(TABLES).flatMap(([table, { columns }]) =>
      Object.entries(columns).flatMap(([column, { hasDefault }]) => (hasDefault ? [`${table}.${column}`] : [])),
    );
    expect(omissible.length).toBeGreaterThan(10);
    expect(omissible.filter((column) => !defaults.has(column))).toEqual([]);
  });

  it('do not compile with a row that lacks a column, or has another type or name of one', () => {
    const row = { tree: 1n, trajectory: 1n, step_number: 0n, name: '', namespace: '', state: new Uint8Array(32) };
    const { namespace, ...lacking } = row;
    const move = rowUpdate(STATE_REFS, ['tree'], ['namespace']);
    const written = (engine: Engine, tx: Tx) => [
      engine.bulk.insert(tx, STATE_REFS, [row]),
      // @ts-expect-error: no namespace
      engine.bulk.insert(tx, STATE_REFS, [lacking]),
      // @ts-expect-error: a number instead of a bigint
      engine.bulk.insert(tx, STATE_REFS, [{ ...row, tree: 1 }]),
      engine.bulk.update(tx, move, [{ tree: 1n, namespace }]),
      // @ts-expect-error: no namespace
      engine.bulk.update(tx, move, [{ tree: 1n }]),
      // @ts-expect-error: the table has no such column
      rowUpdate(STATE_REFS, ['tree'], ['digest']),
    ];
    expect(written).toBeTypeOf('function'); // The compiler checks the rest.
  });

  it('are listed under their names', () => {
    expect(Object.values(TABLES).map(({ name }) => name)).toEqual(Object.keys(TABLES));
  });
});

function line(table: string, column: string, type: string, nullable: boolean): string {
  return `${table}.${column} ${type}${nullable ? '' : ' not null'}`;
}
