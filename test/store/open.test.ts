import { DatabaseSync } from 'node:sqlite';
import pg from 'pg';
import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { APPLICATION_ID } from '../../src/store/sqlite/file_owner.ts';
import { createDatabase, ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep, newState, sha256, stateRef, wordStep } from '../support/steps.ts';
import { openOn, refusedOpen } from './on_store.ts';
import { readWhole, Scene } from './scene.ts';
import { describeSchema } from './schema.ts';
import { outsideSql, sqlitePath } from './sql.ts';
import { sqliteTextsOf, textsOf } from './statement_count.ts';

describe.each(ENGINES)('opening a store, on %s', (engine) => {
  it('creates the committed schema, and nothing else', async () => {
    await using database = await createDatabase(engine);
    await (await openOn(database)).close();
    await expect(await describeSchema(database)).toMatchFileSnapshot(`./schema.${engine}.txt`);
  });

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
    await (await openOn(database)).close();
    const schema = await describeSchema(database);
    const sql = await outsideSql(database);
    await sql.rows('drop table retention_policies');
    await sql.rows("delete from kysely_migration where name = '0036_retention_policies'");
    await sql.close();
    await (await openOn(database)).close();
    expect(await describeSchema(database)).toBe(schema);
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

  it('D3: a migration that fails half-way leaves nothing, and succeeds once its obstacle is removed', async () => {
    await using database = await createDatabase(engine);
    const inTheWay = async (text: string) => {
      if (engine === 'sqlite') {
        const db = new DatabaseSync(sqlitePath(database));
        // A file with tables and without our application id would belong to another program.
        db.exec(`pragma application_id = ${APPLICATION_ID}; ${text}`);
        db.close();
        return;
      }
      const client = new pg.Client(database.url);
      await client.connect();
      await client.query(`create schema if not exists anabranch; set search_path to anabranch; ${text}`);
      await client.end();
    };
    await inTheWay('create table tags (mine text)');
    await expect(openOn(database)).rejects.toThrow();
    const sql = await outsideSql(database);
    expect(await sql.tables()).toEqual(['tags']);
    await sql.close();
    await inTheWay('drop table tags');
    const store = await openOn(database);
    await new Scene(store).createWith(['a']);
    await store.close();
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
