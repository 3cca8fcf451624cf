import { DatabaseSync, type SQLInputValue } from 'node:sqlite';
import pg from 'pg';
import { CopyQuery, encodeCopy } from '../src/store/postgres/copy.ts';
import type { PostgresType } from '../src/store/sql/kit/tables/table.ts';
import type { Engine } from './bench.ts';

import { COLUMNS, ROW_TABLES, type RowSet, type RowTable } from './rows.ts';

/** A database used through its own driver only, with the durability of the service. */
export interface Driver {
  readonly engine: Engine;
  /** Inserts rows of several tables in one commit. */
  insert(tables: readonly RowTable[], rows: RowSet): Promise<void>;
  /** Inserts one row of `plain_steps` in its own commit. */
  insertOne(row: readonly unknown[]): Promise<void>;
  /** Reads all rows of a trajectory's steps and of their states, in order. Returns the number of steps. */
  select(tree: number): Promise<number>;
}

export async function openDriver(database: string): Promise<Driver> {
  return database.startsWith('sqlite:') ? openSqlite(database.slice('sqlite:'.length)) : openPostgres(database);
}

function openSqlite(path: string): Driver {
  const database = new DatabaseSync(path);
  database.exec(`
    pragma journal_mode = wal; pragma synchronous = full; pragma cache_size = -65536; pragma temp_store = memory;
    pragma wal_autocheckpoint = 4000;
    ${createTables('sqlite')}
  `);
  const text = (table: RowTable) => {
    const names = namesOf(table);
    return `insert into ${table} (${names.join(', ')}) values (${names.map(() => '?').join(', ')})`;
  };
  const inserts = {
    plain_states: database.prepare(text('plain_states')),
    plain_steps: database.prepare(text('plain_steps')),
    plain_step_states: database.prepare(text('plain_step_states')),
  };
  const selects = SELECTS.map((select) => {
    const statement = database.prepare(select('?'));
    statement.setReadBigInts(true);
    return statement;
  });
  return {
    engine: 'sqlite',
    async insert(tables, rows) {
      database.exec('begin immediate');
      for (const table of tables) for (const row of rows[table] ?? []) inserts[table].run(...(row as SQLInputValue[]));
      database.exec('commit');
    },
    async insertOne(row) {
      inserts.plain_steps.run(...(row as SQLInputValue[]));
    },
    async select(tree) {
      const [steps] = selects.map((statement) => statement.all(tree));
      return steps?.length ?? 0;
    },
  };
}

async function openPostgres(url: string): Promise<Driver> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query('set search_path = anabranch');
  await client.query(createTables('postgres'));
  const copy = (text: string, rows: Buffer) =>
    new Promise<void>((resolve, reject) => {
      client.query(new CopyQuery(text, rows, (error) => (error ? reject(error) : resolve())));
    });
  const insertOne = `insert into plain_steps (${namesOf('plain_steps').join(', ')}) values (${namesOf('plain_steps')
    .map((_, i) => `$${i + 1}`)
    .join(', ')})`;
  return {
    engine: 'postgres',
    async insert(tables, rows) {
      await client.query('begin');
      for (const table of tables) {
        const text = `copy ${table} (${namesOf(table).join(', ')}) from stdin (format binary)`;
        const columns = COLUMNS[table].map(([, type], i) => ({ name: i, type }));
        await copy(text, encodeCopy(columns, rows[table] ?? []));
      }
      await client.query('commit');
    },
    async insertOne(row) {
      await client.query({ name: 'insert-one', text: insertOne, values: [...row] });
    },
    async select(tree) {
      let steps = 0;
      for (const [i, select] of SELECTS.entries()) {
        const { rows } = await client.query({ name: `select-${i}`, text: select('$1'), values: [tree] });
        if (i === 0) steps = rows.length;
      }
      return steps;
    },
  };
}

/** The columns that the service reads of a step in the FULL view. */
const SELECTS = [
  (
    tree: string,
  ) => `select trajectory, step_number, reward, terminated, truncated, writer_epoch, reward_sum, commit_time, start_time,
    end_time, metrics, actions, observations, info_json, metadata_json from plain_steps where tree = ${tree} order by trajectory, step_number`,
  (tree: string) =>
    `select step_number, name, digest, media_type, size from plain_step_states where tree = ${tree} order by trajectory, step_number`,
];

const PRIMARY_KEYS: Readonly<Record<RowTable, string>> = {
  plain_states: 'namespace, digest',
  plain_steps: 'tree, trajectory, step_number',
  plain_step_states: 'tree, trajectory, step_number, name',
};

const NULLABLE: ReadonlySet<string> = new Set(['reward', 'start_time', 'end_time']);

function createTables(engine: Engine): string {
  return ROW_TABLES.map((table) => {
    const columns = COLUMNS[table].map(([name, type]) => {
      return `${name} ${engine === 'sqlite' ? SQLITE_TYPES[type] : type}${NULLABLE.has(name) ? '' : ' not null'}`;
    });
    return `create table if not exists ${table} (${columns.join(', ')}, primary key (${PRIMARY_KEYS[table]}));`;
  }).join('\n');
}

const SQLITE_TYPES: Readonly<Record<PostgresType, string>> = {
  int8: 'integer',
  float8: '',
  bool: 'integer',
  text: 'text',
  bytea: 'blob',
  timestamptz: 'text',
  uuid: 'text',
};

function namesOf(table: RowTable): string[] {
  return COLUMNS[table].map(([name]) => name);
}
