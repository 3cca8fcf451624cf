import { setTimeout as wait } from 'node:timers/promises';
import { Kysely, PostgresDialect } from 'kysely';
import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { migrate } from '../../src/store/migrations/migrate.ts';
import type { Migration } from '../../src/store/migrations/migration.ts';
import { openStore } from '../../src/store/open.ts';
import { addMigration } from '../support/added_migration.ts';
import { createDatabase, ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { wordStep } from '../support/steps.ts';
import { logger, openedAs, openOn, refusedOpen } from './on_store.ts';
import { Scene } from './scene.ts';
import { outsideSql } from './sql.ts';

const ADD_COLUMN = 'alter table trajectories add column model_uri text;';
const WITH_COLUMN: Migration = { name: '9001_add_model_uri_after_0001', postgres: ADD_COLUMN, sqlite: ADD_COLUMN };
const INDEX = 'trajectories_by_model_uri';
const WITH_INDEX: Migration = {
  ...WITH_COLUMN,
  indexes: [{ name: INDEX, table: 'trajectories', keys: '(model_uri) where model_uri is not null' }],
};

describe.each(ENGINES)('a migration, on %s', (engine) => {
  it('builds the indexes that it adds, at the end, and only once', async () => {
    await using database = await createMigratedDatabase(engine);
    using _ = addMigration(WITH_INDEX);
    await (await openOn(database)).close();
    await (await openOn(database)).close();
    const sql = await outsideSql(database);
    const found =
      engine === 'postgres'
        ? `select indexname from pg_indexes where indexname = '${INDEX}'`
        : `select name from sqlite_master where name = '${INDEX}' and tbl_name = 'trajectories'`;
    expect(await sql.rows(found)).toHaveLength(1);
    await sql.close();
  });

  it('of a later version does not keep an earlier one from the schema, unless it says so', async () => {
    await using database = await createMigratedDatabase(engine);
    {
      using _ = addMigration(WITH_COLUMN);
      await (await openOn(database)).close();
    }
    const store = await openOn(database);
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    expect(await scene.words(made)).toEqual(['a']);
    await store.close();
    using _ = addMigration({ ...WITH_COLUMN, name: '9002_remove_labels_after_9001', postgres: '', sqlite: '' });
    const sql = await outsideSql(database);
    await sql.rows(`insert into kysely_migration (name, timestamp) values ('9003_later_after_9003', '')`);
    await sql.close();
    expect((await refusedOpen(openOn(database))).message).toMatch(/newer version of Anabranch \(it has 9003_later/);
  });
});

describe('a migration, on postgres', () => {
  it('of another process between two looks at the schema is no damage', async () => {
    await using database = await createDatabase('postgres');
    // The migrator makes its own tables first.
    const sql = await outsideSql(database);
    await sql.rows('create schema anabranch');
    await sql.rows('create table anabranch.kysely_migration (name varchar(255) primary key, timestamp varchar(255))');
    await sql.close();
    let looks = 0;
    const db = new Kysely<unknown>({
      dialect: new PostgresDialect({ pool: new pg.Pool({ connectionString: database.url, max: 2 }) }),
      log: async ({ query }) => {
        if (query.sql.includes('from pg_tables') && ++looks === 1) await (await openOn(database)).close();
      },
    });
    await migrate(db, 'postgres', { schema: 'anabranch' });
    expect(looks).toBe(2);
    await db.destroy();
  });

  it('lets no append wait behind a lock that it waits for, and continues when the lock is released', async () => {
    await using database = await createMigratedDatabase('postgres');
    const serving = await openOn(database);
    const scene = new Scene(serving);
    const made = await scene.createWith(['a']);
    const reader = new pg.Client(database.url);
    await reader.connect();
    await reader.query('begin; select count(*) from anabranch.trajectories');

    using _ = addMigration(WITH_COLUMN);
    const words = ['a'];
    const retries = Promise.withResolvers<void>();
    let attempts = 0;
    const warn = (_details: object, message: string) => {
      if (message.includes('is locked') && ++attempts === 2) retries.resolve();
    };
    const migrating = openStore(openedAs(database), { logger: { info() {}, warn, error() {} } });
    const appending = (async () => {
      while (attempts < 2) {
        await scene.append(made, [wordStep(BigInt(words.length), `${words.length}`)]);
        words.push(`${words.length}`);
      }
    })();
    await retries.promise;
    await appending;
    expect(words.length).toBeGreaterThan(2);
    await reader.query('commit');
    await reader.end();
    await (await migrating).close();
    await scene.append(made, [wordStep(BigInt(words.length), 'last')]);
    expect(await scene.words(made)).toEqual([...words, 'last']);
    await serving.close();
  });

  it('replaces an index whose creation was interrupted', async () => {
    await using database = await createMigratedDatabase('postgres');
    using _ = addMigration(WITH_INDEX);
    await (await openOn(database)).close();
    const admin = new pg.Client(database.adminUrl);
    await admin.connect();
    const valid = `select indexrelid as id, indisvalid from pg_index where indexrelid = 'anabranch.${INDEX}'::regclass`;
    const [before] = (await admin.query(valid)).rows;
    await admin.query(`update pg_index set indisvalid = false where indexrelid = 'anabranch.${INDEX}'::regclass`);
    await (await openOn(database)).close();
    const [after] = (await admin.query(valid)).rows;
    await admin.end();
    expect(before).toMatchObject({ indisvalid: true });
    expect(after).toMatchObject({ indisvalid: true });
    expect(after.id).not.toBe(before.id);
  });

  it('runs once if two processes begin it, also with an index that waits for all other statements', async () => {
    await using database = await createMigratedDatabase('postgres');
    using _ = addMigration(WITH_INDEX);
    const stores = await Promise.all([openOn(database), openOn(database), openOn(database)]);
    await Promise.all(stores.map((store) => store.close()));
    const sql = await outsideSql(database);
    expect(await sql.rows(`select indisvalid from pg_index where indexrelid = '${INDEX}'::regclass`)).toEqual([
      { indisvalid: true },
    ]);
    await sql.close();
  });
});

describe('opening without migrating, on postgres', () => {
  it('waits until another process has migrated the schema', async () => {
    await using database = await createDatabase('postgres');
    const waits = Promise.withResolvers<void>();
    const signal = new AbortController().signal;
    const waiting = openStore(openedAs(database), {
      logger,
      waiting: { signal, onWait: async () => waits.resolve() },
    });
    await waits.promise;
    await expect(Promise.race([waiting, wait(50, 'waits')])).resolves.toBe('waits');
    await (await openOn(database)).close();
    const store = await waiting;
    await new Scene(store).createWith(['a']);
    await store.close();
  });

  it('does not wait for a schema of this version, and refuses one of another program', async () => {
    await using database = await createMigratedDatabase('postgres');
    const waiting = {
      signal: new AbortController().signal,
      onWait: async () => expect.unreachable(),
    };
    await (await openStore(openedAs(database), { logger, waiting })).close();
    const sql = await outsideSql(database);
    await sql.rows(`update kysely_migration set name = '0001_theirs'`);
    await sql.close();
    expect((await refusedOpen(openStore(openedAs(database), { logger, waiting }))).message).toMatch(/another program/);
  });

  it('stops waiting when it is told to', async () => {
    await using database = await createDatabase('postgres');
    const stop = new AbortController();
    const waiting = openStore(openedAs(database), {
      logger,
      waiting: { signal: stop.signal, onWait: async () => stop.abort() },
    });
    await expect(waiting).rejects.toThrow(expect.objectContaining({ name: 'AbortError' }));
  });
});
