import { DatabaseSync } from 'node:sqlite';
import pg from 'pg';
import { describe, expect, it, vi } from 'vitest';
import { type Store, StoreOpenError } from '../../src/store/contract/store.ts';
import { APPLICATION_ID } from '../../src/store/file_guard/file_owner.ts';
import type { ConversionProgress, Migration } from '../../src/store/migrations/migration.ts';
import { openStore } from '../../src/store/open.ts';
import { addMigration, CONVERTED_AT_ONCE, convertSteps } from '../support/added_migration.ts';
import { createDatabase, ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep, newState, sha256, stateRef, wordStep } from '../support/steps.ts';
import { openedAs, openOn, refusedOpen } from './on_store.ts';
import { readWhole, Scene } from './scene.ts';
import { describeSchema } from './schema.ts';
import { outsideSql, sqlitePath } from './sql.ts';
import { sqliteTextsOf, textsOf } from './statement_count.ts';

const bothEngines = (name: string, statements: string): Migration => {
  return { name, postgres: statements, sqlite: statements };
};

/** Runs statements in a database that no store has opened yet. */
async function runOutside(database: TestDatabase, statements: string): Promise<void> {
  if (database.engine === 'sqlite') {
    const db = new DatabaseSync(sqlitePath(database));
    // Without our application id, the file itself would be refused.
    db.exec(`pragma application_id = ${APPLICATION_ID}; ${statements}`);
    db.close();
    return;
  }
  const client = new pg.Client(database.url);
  await client.connect();
  await client.query(`create schema if not exists anabranch; set search_path to anabranch; ${statements}`);
  await client.end();
}

describe.each(ENGINES)('opening a store, on %s', (engine) => {
  it('a second time changes nothing and keeps all data', async () => {
    await using database = await createMigratedDatabase(engine);
    const first = await openOn(database);
    const before = new Scene(first);
    const state = newState('kept');
    const made = await before.create({ labels: new Map([['k', 'v']]) });
    await before.append(made, [makeStep(0n, { states: [stateRef(state)], reward: Number.NaN })], { states: [state] });
    await before.open(made);
    const row = await before.get(made.id);
    const steps = await before.steps(made);
    await first.close();
    const schema = await describeSchema(database);

    const second = await openOn(database);
    const after = new Scene(second, before.namespace);
    expect(await after.get(made.id)).toEqual(row);
    expect(await after.steps(made)).toEqual(steps);
    expect((await readWhole(second, after.namespace, state.digest)).toString()).toBe('kept');
    const next = await after.create();
    expect(next.ref.key > made.ref.key).toBe(true);
    await second.close();
    expect(await describeSchema(database)).toBe(schema);
  });

  it('runs the migrator, which describes all tables, only if a migration is missing', async () => {
    await using database = await createDatabase(engine);
    const open = async () => {
      let store: Store | undefined;
      const opening = async () => {
        store = await openOn(database);
      };
      const texts = await (engine === 'postgres' ? textsOf(opening) : sqliteTextsOf(opening));
      await store?.close();
      return texts.filter((text) => text.includes('kysely_migration_lock')).length;
    };
    expect(await open()).toBeGreaterThan(0);
    expect(await open()).toBe(0);
  });

  it('runs a migration that was added later with a lower number than one that ran', async () => {
    await using database = await createMigratedDatabase(engine);
    const add = (name: string, table: string) => addMigration(bothEngines(name, `create table ${table} (n bigint);`));
    using _second = add('9002_second', 'second');
    await (await openOn(database)).close();
    using _first = add('9001_first', 'first');
    await (await openOn(database)).close();
    const sql = await outsideSql(database);
    expect(await sql.tables()).toEqual(expect.arrayContaining(['first', 'second']));
    const names = await sql.rows(`select name from kysely_migration where name like '9%' order by name`);
    expect(names.map(({ name }) => name)).toEqual(['9001_first', '9002_second']);
    await sql.close();
  });

  it('D3: a conversion that is interrupted keeps what it committed, and the next start continues', async () => {
    await using database = await createMigratedDatabase(engine);
    const first = await openOn(database);
    const scene = new Scene(first);
    const words = Array.from({ length: 2 * Number(CONVERTED_AT_ONCE) + 5 }, (_, i) => `${i}`);
    const made = await scene.createWith(words);
    await first.close();
    const sql = await outsideSql(database);
    const converted = async () => Number((await sql.rows('select count(*) as n from step_texts'))[0]?.n);
    {
      using _ = addMigration(
        convertSteps({
          onConverted({ done }) {
            if (done > CONVERTED_AT_ONCE) throw new Error('interrupted');
          },
        }),
      );
      await expect(openOn(database)).rejects.toThrow('interrupted');
    }
    expect(await converted()).toBe(Number(CONVERTED_AT_ONCE));
    const progress: ConversionProgress[] = [];
    using _ = addMigration(convertSteps({ onConverted: (each) => void progress.push(each) }));
    const second = await openOn(database);
    const total = BigInt(words.length);
    expect(progress).toEqual([2n * CONVERTED_AT_ONCE, total].map((done) => ({ rows: 'steps', done, total })));
    expect(await converted()).toBe(words.length);
    expect(await sql.tables()).not.toContain('converting_steps');
    expect(await new Scene(second, scene.namespace).words(made)).toEqual(words);
    await second.close();
    await sql.close();
  });

  it('B3: uses no row key again, not even that of the newest row, deleted before the restart', async () => {
    await using database = await createMigratedDatabase(engine);
    const first = await openOn(database);
    const before = new Scene(first);
    const made = await before.create();
    await before.delete(made);
    await first.close();
    const second = await openOn(database);
    expect((await new Scene(second).create()).ref.key > made.ref.key).toBe(true);
    await second.close();
  });

  it('refuses a schema of a newer version with an error that says so, and changes nothing', async () => {
    await using database = await createMigratedDatabase(engine);
    await (await openOn(database)).close();
    const sql = await outsideSql(database);
    const columns = Object.keys((await sql.rows('select * from kysely_migration'))[0] ?? {});
    expect(columns).toContain('name');
    await sql.rows(
      `insert into kysely_migration (name, timestamp) values ('9999_from_the_future', '2099-01-01T00:00:00Z')`,
    );
    await sql.close();
    const schema = await describeSchema(database);
    const error = await refusedOpen(openOn(database));
    expect(error.message).toMatch(/newer version/);
    expect(error.message).toContain('9999_from_the_future');
    expect(await describeSchema(database)).toBe(schema);
  });

  it.each([
    ['the first migration of an earlier commit', `update kysely_migration set name = '0001_trajectories'`],
    ['the baseline of another commit', `update kysely_migration set name = '0001_baseline_00000000'`],
    [
      'the migrations of an earlier commit',
      `update kysely_migration set name = '0001_trajectories';
        insert into kysely_migration (name, timestamp) values ('0002_runs', '')`,
    ],
  ])('refuses a schema with %s in one line that says what to do, and changes nothing', async (_what, change) => {
    await using database = await createMigratedDatabase(engine);
    const sql = await outsideSql(database);
    for (const statement of change.split(';')) await sql.rows(statement);
    const schema = await describeSchema(database);
    const error = await refusedOpen(openOn(database));
    expect(error).toBeInstanceOf(StoreOpenError);
    expect(error.message).toMatch(
      /^An unreleased version of Anabranch made the database \(0001_.*anabranch reset.*\.$/,
    );
    expect(await describeSchema(database)).toBe(schema);
    await sql.close();
  });

  const tableOfOthers = 'create table mine (text text)';
  it.each([
    ['tables', tableOfOthers, 'the table "mine"'],
    [
      'migrations',
      `create table kysely_migration (name text); insert into kysely_migration values ('0001_init'); ${tableOfOthers}`,
      'the migration "0001_init"',
    ],
  ])('refuses a schema with %s of another program, and changes nothing', async (_what, statements, found) => {
    await using database = await createDatabase(engine);
    await runOutside(database, statements);
    const schema = await describeSchema(database);
    const error = await refusedOpen(openOn(database));
    expect(error).toBeInstanceOf(StoreOpenError);
    expect(error.message).toContain(`another program (it has ${found})`);
    expect(await describeSchema(database)).toBe(schema);
  });

  it('D3: creates the schema if an earlier start ended after the tables of the migrator, before the first migration', async () => {
    await using database = await createDatabase(engine);
    await runOutside(
      database,
      `create table kysely_migration (name varchar(255) not null primary key, timestamp varchar(255) not null);
        create table kysely_migration_lock (id varchar(255) not null primary key, is_locked integer default 0 not null)`,
    );
    const store = await openOn(database);
    await new Scene(store).createWith(['a']);
    await store.close();
  });

  it('D3: a migration that fails half-way leaves nothing, and succeeds once its obstacle is removed', async () => {
    await using database = await createMigratedDatabase(engine);
    const sql = await outsideSql(database);
    await sql.rows('create table obstacle (mine text)');
    const statements = 'create table before_it (n bigint);\ncreate table obstacle (n bigint);';
    using _ = addMigration(bothEngines('9001_halfway', statements));
    await expect(openOn(database)).rejects.toThrow('obstacle');
    expect(await sql.tables()).not.toContain('before_it');
    await sql.rows('drop table obstacle');
    const store = await openOn(database);
    await new Scene(store).createWith(['a']);
    await store.close();
    expect(await sql.tables()).toEqual(expect.arrayContaining(['before_it', 'obstacle']));
    await sql.close();
  });

  it('a closed store refuses calls with an error and without hanging; a second close is safe', async () => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    const upload = store.putState(scene.namespace);
    await Promise.all([store.close(), store.close()]);
    await store.close();
    const calls: Record<string, () => Promise<unknown>> = {
      ping: () => store.ping(),
      create: () => scene.create(),
      get: () => store.getTrajectory(scene.namespace, made.id),
      append: () => store.append([scene.batch(made, [wordStep(1n, 'b')])], 'never'),
      open: () => scene.open(made),
      delete: () => scene.delete(made),
      findStates: () => store.findStates(scene.namespace, [sha256('x')], true),
      finish: () => upload.finish(),
      collect: () => store.collectStates(24, 10),
    };
    for (const [name, call] of Object.entries(calls)) {
      const told = await Promise.resolve()
        .then(call)
        .then(
          () => 'answered',
          (error: unknown) => error instanceof Error,
        );
      expect([name, told]).toEqual([name, true]);
    }
  });

  it('close waits for running work: acked writes are stored, all others fail', async () => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    const scene = new Scene(store);
    const made = await Promise.all(Array.from({ length: 20 }, () => scene.create()));
    const appends = made.map((each) => scene.append(each, [wordStep(0n, 'a')]));
    const closed = store.close();
    const results = await Promise.allSettled(appends);
    await closed;
    const second = await openOn(database);
    const after = new Scene(second, scene.namespace);
    for (const [i, result] of results.entries()) {
      const { nextStepNumber } = await after.get((made[i] as (typeof made)[number]).id);
      if (result.status === 'fulfilled') expect(nextStepNumber).toBe(1n);
      else expect(result.reason).toBeInstanceOf(Error);
    }
    await second.close();
  });

  it('the description of a store names engine and location, without secrets', async () => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    expect(store.description.startsWith(engine)).toBe(true);
    if (engine === 'sqlite') expect(store.description).toContain(sqlitePath(database));
    else {
      const { password, pathname } = new URL(database.url);
      expect(password).not.toBe('');
      expect(store.description).not.toContain(password);
      expect(store.description).toContain(pathname.slice(1));
    }
    await store.close();
  });
});

it('a conversion logs its progress', async () => {
  await using database = await createMigratedDatabase('sqlite');
  const first = await openOn(database);
  await new Scene(first).createWith(Array.from({ length: 30 }, (_, i) => `${i}`));
  await first.close();
  let now = 0;
  vi.spyOn(performance, 'now').mockImplementation(() => {
    now += 2500;
    return now;
  });
  const info = vi.fn();
  try {
    using _ = addMigration(convertSteps());
    const silent = () => undefined;
    await (await openStore(openedAs(database), { logger: { info, warn: silent, error: silent } })).close();
  } finally {
    vi.restoreAllMocks();
  }
  expect(info.mock.calls).toEqual([
    [{ rows: 'steps', done: 25n, total: 30n }, 'migrating'],
    [{ rows: 'steps', done: 30n, total: 30n }, 'migrating'],
  ]);
});
