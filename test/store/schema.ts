import { DatabaseSync } from 'node:sqlite';
import pg from 'pg';
import type { TestDatabase } from '../support/database.ts';
import { sqlitePath } from './sql.ts';

/** The schema as text, after all migrations. */
export async function describeSchema(database: TestDatabase): Promise<string> {
  const text = database.engine === 'sqlite' ? sqliteSchema(sqlitePath(database)) : await postgresSchema(database.url);
  return `${text}\n`;
}

function sqliteSchema(file: string): string {
  const db = new DatabaseSync(file, { readOnly: true });
  try {
    const rows = db.prepare(`select sql from sqlite_master where sql is not null order by type desc, name`).all();
    return rows
      .map(({ sql }) =>
        String(sql)
          .split('\n')
          .map((line) => line.trim())
          .join('\n  ')
          .replace(/\n {2}\)/, '\n)'),
      )
      .join(';\n\n');
  } finally {
    db.close();
  }
}

async function postgresSchema(url: string): Promise<string> {
  const client = new pg.Client(url);
  await client.connect();
  try {
    const lines = async (text: string) => (await client.query<{ line: string }>(text)).rows.map(({ line }) => line);
    const tables = await lines(COLUMNS);
    const rest = [
      ...(await lines(OPTIONS)),
      ...(await lines(CONSTRAINTS)),
      ...(await lines(INDEXES)),
      ...(await lines(SEQUENCES)),
    ];
    return [...tables, '', ...rest].join('\n');
  } finally {
    await client.end();
  }
}

const COLUMNS = `
  select format('%s.%s %s%s%s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
    case when a.attcollation <> t.typcollation then ' collate ' || l.collname else '' end,
    case when a.attnotnull then ' not null' else '' end,
    coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), ''),
    case when a.attstorage <> t.typstorage then ' storage ' || a.attstorage::text else '' end) as line
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'anabranch'
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  join pg_type t on t.oid = a.atttypid
  left join pg_collation l on l.oid = a.attcollation
  left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
  where c.relkind in ('r', 'p')
  order by c.relname collate "C", a.attnum`;

const OPTIONS = `
  select format('%s with (%s)', c.relname, array_to_string(c.reloptions, ', ')) as line
  from pg_class c join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'anabranch'
  where c.reloptions is not null order by c.relname collate "C"`;

const CONSTRAINTS = `
  select format('%s: %s', c.conrelid::regclass::text, pg_get_constraintdef(c.oid)) as line
  from pg_constraint c join pg_namespace n on n.oid = c.connamespace and n.nspname = 'anabranch'
  where c.contype <> 'n'
  order by format('%s: %s', c.conrelid::regclass::text, pg_get_constraintdef(c.oid)) collate "C"`;

const INDEXES = `
  select indexdef as line from pg_indexes where schemaname = 'anabranch' order by indexname collate "C"`;

const SEQUENCES = `
  select format('sequence %s %s', sequencename, data_type) as line from pg_sequences where schemaname = 'anabranch' order by sequencename`;
