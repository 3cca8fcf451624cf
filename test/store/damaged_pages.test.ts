import { closeSync, copyFileSync, openSync, writeSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { StorageFault } from '../../src/domain/verification.ts';
import { copyPostgresDatabase, createPostgresDatabase, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { type PostgresServer, startPostgres } from '../support/postgres.ts';
import { makeStep } from '../support/steps.ts';
import { openOn } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { sqlitePath } from './sql.ts';
import { expectVerified, faultsOf } from './verified.ts';

const TABLE = 'status_changes';
const FIRST = 'where key = (select min(key) from trajectories)';

/** Stores rows that fill several pages of tables and of indexes, without damage. */
async function furnish(database: TestDatabase): Promise<void> {
  const store = await openOn(database);
  const scene = new RunScene(store);
  for (let i = 0; i < 40; i += 1) {
    const root = await scene.create({ name: `n${i}`.padEnd(200, 'x') });
    await scene.append(root, [makeStep(0n, { reward: 1 })]);
  }
  await expectVerified(store);
  await store.close();
}

/** The faults after this damage. No store is opened on a database that lacks a table. */
async function faultsAfter(database: TestDatabase, title: string, damage: () => unknown): Promise<StorageFault[]> {
  const before = title === 'a missing table' ? await openOn(database) : undefined;
  await damage();
  const store = before ?? (await openOn(database));
  return faultsOf(store).finally(() => store.close());
}

const databaseFaults = (faults: readonly StorageFault[]) =>
  faults.filter(({ check }) => check === 'DATABASE').map(({ message }) => message);

describe('on sqlite', () => {
  /** Where the tree of a table or an index begins. */
  function pagesOf(path: string, name: string): { readonly root: number; readonly pageSize: number } {
    const database = new DatabaseSync(path, { readOnly: true });
    try {
      const row = database.prepare('select rootpage from sqlite_schema where name = ?').get(name);
      const size = database.prepare('pragma page_size').get();
      return { root: Number(row!.rootpage), pageSize: Number(size!.page_size) };
    } finally {
      database.close();
    }
  }

  function indexOf(path: string): string {
    const database = new DatabaseSync(path, { readOnly: true });
    try {
      const row = database
        .prepare(
          `select name from sqlite_schema where type = 'index' and tbl_name = 'trajectories' and sql is not null`,
        )
        .get();
      return String(row!.name);
    } finally {
      database.close();
    }
  }

  function overwrite(path: string, position: number, bytes: Buffer): void {
    const file = openSync(path, 'r+');
    writeSync(file, bytes, 0, bytes.length, position);
    closeSync(file);
  }

  const unguarded = (path: string, ...statements: string[]) => {
    const database = new DatabaseSync(path, { defensive: false });
    for (const statement of statements) database.exec(statement);
    database.close();
  };

  /** Runs a statement that the index does not notice. */
  function behind(path: string, index: string, statement: string): void {
    const columns = 'type, name, tbl_name, rootpage, sql';
    unguarded(
      path,
      'pragma writable_schema = on',
      `create table kept as select ${columns} from sqlite_schema where name = '${index}'`,
      `delete from sqlite_schema where name = '${index}'`,
    );
    unguarded(path, statement);
    unguarded(
      path,
      'pragma writable_schema = on',
      `insert into sqlite_schema (${columns}) select ${columns} from kept`,
      'drop table kept',
    );
  }

  const DAMAGE: Readonly<Record<string, { readonly damage: (path: string) => void; readonly message: RegExp }>> = {
    'a missing entry of an index': {
      damage: (path) =>
        behind(path, 'segments_with_states', `update segments set state_names = '["x"]', body_bytes = 1`),
      message: /missing from index segments_with_states|wrong # of entries/,
    },
    'an entry of an index without a row': {
      damage: (path) => behind(path, 'trajectories_by_id', `delete from trajectories ${FIRST}`),
      message: /table trajectories: wrong # of entries in index trajectories_by_id/,
    },
    'an entry of a partial index without a row': {
      damage: (path) => behind(path, 'trajectories_without_run', `delete from trajectories ${FIRST}`),
      message: /table trajectories: index trajectories_without_run has 40 entries for 39 rows/,
    },
    'a damaged page of an index': {
      damage: (path) => {
        const { root, pageSize } = pagesOf(path, indexOf(path));
        overwrite(path, (root - 1) * pageSize, Buffer.alloc(64, 0xff));
      },
      message: /table trajectories/,
    },
    'a damaged page of a table': {
      damage: (path) => {
        const { root, pageSize } = pagesOf(path, TABLE);
        overwrite(path, (root - 1) * pageSize, Buffer.alloc(64, 0xff));
      },
      message: new RegExp(`table ${TABLE}`),
    },
    'a table of trajectories that cannot be read': {
      damage: (path) => {
        const { root, pageSize } = pagesOf(path, 'trajectories');
        overwrite(path, (root - 1) * pageSize, Buffer.alloc(64, 0xff));
      },
      message: /table trajectories/,
    },
    'a table of stages that cannot be read': {
      damage: (path) => {
        const { root, pageSize } = pagesOf(path, 'stages');
        overwrite(path, (root - 1) * pageSize, Buffer.alloc(64, 0xff));
      },
      message: /table stages/,
    },
    'a missing table': {
      damage: (path) => unguarded(path, `drop table ${TABLE}`),
      message: /no such table/,
    },
  };

  let furnished: TestDatabase;
  beforeAll(async () => {
    furnished = await createMigratedDatabase('sqlite');
    await furnish(furnished);
  });
  afterAll(() => furnished?.drop());

  it.each(Object.keys(DAMAGE))('V1: finds %s, and reads the rest', async (title) => {
    await using database = await createMigratedDatabase('sqlite');
    const path = sqlitePath(database);
    copyFileSync(sqlitePath(furnished), path);
    const { damage, message } = DAMAGE[title]!;
    const faults = await faultsAfter(database, title, () => damage(path));
    expect(databaseFaults(faults)).toContainEqual(expect.stringMatching(message));
  });
});

describe('on postgres', () => {
  /** Changes the beginning of a page of a relation, as a disk does, and forgets the page in memory. */
  async function overwrite(sql: pg.Client, relation: string, page: number): Promise<void> {
    const { rows } = await sql.query(
      `select current_setting('data_directory') || '/' || pg_relation_filepath($1) as path`,
      [`anabranch.${relation}`],
    );
    await sql.query('checkpoint');
    const file = openSync(String(rows[0].path), 'r+');
    writeSync(file, Buffer.alloc(24, 0xff), 0, 24, page * 8192);
    closeSync(file);
    await sql.query('select pg_buffercache_evict_all()');
  }

  const DAMAGE: Readonly<
    Record<string, { readonly damage: (sql: pg.Client) => Promise<unknown>; readonly message: RegExp }>
  > = {
    'a missing entry of an index': {
      damage: async (sql) => {
        const hide = (ready: boolean) =>
          sql.query(
            `update pg_index set indisready = $1 where indexrelid = 'anabranch.segments_with_states'::regclass`,
            [ready],
          );
        await hide(false);
        await sql.query(`update anabranch.segments set state_names = '["x"]', body_bytes = 1`);
        await hide(true);
      },
      message: /index segments_with_states: .*lacks matching index tuple/,
    },
    'a damaged page of an index': {
      damage: (sql) => overwrite(sql, 'segments_with_states', 0),
      message: /index segments_with_states: .*(?:page|magic)/,
    },
    'a damaged page of a table': {
      damage: (sql) => overwrite(sql, 'status_changes', 0),
      message: /table status_changes: invalid page/,
    },
    'a table of trajectories that cannot be read': {
      damage: (sql) => overwrite(sql, 'trajectories', 0),
      message: /trajectories after tree 0, key 0 cannot be read: invalid page/,
    },
    'a missing table': {
      damage: (sql) => sql.query('drop table anabranch.status_changes'),
      message: /cannot be read: .*status_changes/,
    },
  };

  const LOGIN = { user: 'furnished', password: 'secret' };
  let server: PostgresServer;
  beforeAll(async () => {
    server = await startPostgres();
    const furnished = await createPostgresDatabase(server.url, LOGIN);
    await furnish(furnished);
    const sql = await connected(furnished);
    await sql.query('create extension amcheck; create extension pg_buffercache');
    await sql.query('grant execute on all functions in schema public to public');
    await sql.end();
  });
  afterAll(() => server?.stop());

  async function connected({ adminUrl }: TestDatabase): Promise<pg.Client> {
    const sql = new pg.Client({ connectionString: adminUrl });
    await sql.connect();
    return sql;
  }

  it.each(Object.keys(DAMAGE))('V1: finds %s, and reads the rest', async (title) => {
    await using database = await copyPostgresDatabase(server.url, LOGIN);
    const { damage, message } = DAMAGE[title]!;
    const faults = await faultsAfter(database, title, async () => {
      const sql = await connected(database);
      await damage(sql);
      await sql.end();
    });
    expect(databaseFaults(faults)).toContainEqual(expect.stringMatching(message));
  });
});
