import pg from 'pg';
import { expect, it } from 'vitest';
import { COLUMN_TYPES } from '../../src/store/postgres/column_types.ts';
import { describeStoreOn } from './on_store.ts';

/** Every column that the migrations made; kysely's own tables are written by kysely alone. */
const COLUMNS = `
  select c.relname as table, a.attname as column, t.typname as type
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'anabranch'
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  join pg_type t on t.oid = a.atttypid
  where c.relkind in ('r', 'p') and c.relname not like 'kysely%'`;

describeStoreOn(['postgres'], 'COLUMN_TYPES', (on) => {
  it('has every column of every table, with the type that the migrations gave it', async () => {
    const client = new pg.Client(on.database.url);
    await client.connect();
    try {
      const { rows } = await client.query<{ table: string; column: string; type: string }>(COLUMNS);
      const stored = rows.map(({ table, column, type }) => `${table}.${column} ${type}`);
      const listed = Object.entries(COLUMN_TYPES).flatMap(([table, columns]) =>
        Object.entries(columns).map(([column, type]) => `${table}.${column} ${type}`),
      );
      expect(stored.length).toBeGreaterThan(300);
      expect(listed.sort()).toEqual(stored.sort());
    } finally {
      await client.end();
    }
  });
});
