import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { openStore } from '../../src/store/open.ts';
import { createDatabase, createPostgresDatabase, postgresUrl } from '../support/database.ts';
import { startPostgres } from '../support/postgres.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { logger, openedAs, openOn, refusedOpen } from './on_store.ts';
import { readWhole, Scene } from './scene.ts';
import { outsideSql } from './sql.ts';

describe('opening a store, on postgres', () => {
  it('concurrent opens by many instances on an empty database create one schema, and all of them work', async () => {
    await using database = await createDatabase('postgres');
    const stores = await Promise.all(Array.from({ length: 5 }, () => openOn(database)));
    for (const store of stores) await new Scene(store).createWith(['a']);
    await Promise.all(stores.map((store) => store.close()));
    const sql = await outsideSql(database);
    const migrations = await sql.rows('select name from kysely_migration');
    expect(new Set(migrations.map(({ name }) => name)).size).toBe(migrations.length);
    await sql.close();
  });

  it.each(['the role', 'Postgres'])(
    'A1: when %s accepts fewer connections than its pool wants, a new instance says so and serves all calls with them',
    async (bound) => {
      await using stack = new AsyncDisposableStack();
      // Three are for superusers.
      const own = bound === 'Postgres' && stack.use(await startPostgres({ settings: { max_connections: '12' } }));
      const database = own ? await createPostgresDatabase(own.url) : stack.use(await createDatabase('postgres'));
      await (await openOn(database)).close();
      const admin = new pg.Client(database.adminUrl);
      await admin.connect();
      if (!own) await admin.query(`alter role ${new URL(database.url).pathname.slice(1)} connection limit 3`);
      await admin.end();
      // Another instance, which keeps its connections.
      for (let i = 0; own && i < 6; i += 1) {
        const taken = new pg.Client(database.url);
        await taken.connect();
        stack.defer(() => taken.end());
      }
      const fewer: object[] = [];
      const warn = (details: object, message: string) => {
        if (message.includes('accepts no more connections')) fewer.push(details);
      };
      const store = await openStore(openedAs(database), { logger: { info() {}, warn, error: warn } });
      const scene = new Scene(store);
      const made = await scene.createWith(['a']);
      const reads = Array.from({ length: 30 }, () => scene.get(made.id));
      for (const { nextStepNumber } of await Promise.all(reads)) expect(nextStepNumber).toBe(1n);
      const others = await Promise.all(Array.from({ length: 10 }, () => scene.createWith(['a', 'b'])));
      expect(others).toHaveLength(10);
      expect(fewer[0]).toMatchObject({ wanted: 10 });
      await store.close();
    },
  );

  it('design 6: uses a schema of its own; a role that may connect and create a schema is sufficient', async () => {
    await using database = await createDatabase('postgres');
    await (await openOn(database)).close();
    const client = new pg.Client(database.adminUrl);
    await client.connect();
    const { rows } = await client.query(
      `select distinct n.nspname as schema from pg_class c join pg_namespace n on n.oid = c.relnamespace
       where n.nspname not like 'pg\\_%' and n.nspname <> 'information_schema'`,
    );
    await client.end();
    expect(rows).toEqual([{ schema: 'anabranch' }]);
  });

  it.each(['off', 'local'])(
    'D1: with synchronous_commit = %s on role or database, no ack is sent that a power cut could lose',
    async (setting) => {
      await using database = await createDatabase('postgres');
      const name = new URL(database.url).pathname.slice(1);
      const admin = new pg.Client(database.adminUrl);
      await admin.connect();
      await admin.query(`alter role ${name} set synchronous_commit = ${setting}`);
      await admin.end();
      const store = await openOn(database).catch((error: Error) => error);
      if (store instanceof Error) {
        expect(store.message).toContain('synchronous_commit');
        return;
      }
      // The setting changes after the store was opened, so appending transactions must override it. `local` is durable
      // on this server.
      const scene = new Scene(store);
      const made = await scene.create();
      const sql = await outsideSql(database);
      await sql.rows(`create table witness (setting text)`);
      await sql.rows(`create function witness() returns trigger language plpgsql as $$ begin
      insert into anabranch.witness values (current_setting('synchronous_commit')); return new; end $$`);
      await sql.rows(`create trigger witness before insert on segments for each row execute function witness()`);
      await scene.append(made, [wordStep(0n, 'a')]);
      const [seen] = await sql.rows('select setting from anabranch.witness');
      expect(['on', 'local', 'remote_write', 'remote_apply']).toContain(seen?.setting);
      await sql.close();
      await store.close();
    },
  );

  it('D1: the same holds if synchronous_commit of the role is turned off while the store is open', async () => {
    await using database = await createDatabase('postgres');
    const store = await openOn(database);
    const scene = new Scene(store);
    const made = await scene.create();
    const name = new URL(database.url).pathname.slice(1);
    const admin = new pg.Client(database.adminUrl);
    await admin.connect();
    await admin.query(`alter role ${name} set synchronous_commit = off`);
    await admin.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`,
    );
    await admin.end();
    let refused = 0;
    for (let i = 0; i < 3; i += 1)
      await scene.append(made, [wordStep(0n, 'a')]).catch(() => {
        refused += 1;
      });
    expect(refused).toBe(3);
    await store.close();
  });

  it('W11: defaults of the role have no effect: formats of numbers, times and bytes, isolation, time zone', async () => {
    await using database = await createDatabase('postgres');
    const name = new URL(database.url).pathname.slice(1);
    const defaults = {
      extra_float_digits: '-15',
      datestyle: "'SQL, DMY'",
      bytea_output: 'escape',
      timezone: "'Asia/Kathmandu'",
      intervalstyle: 'sql_standard',
      default_transaction_isolation: 'serializable',
      search_path: 'nowhere',
      array_nulls: 'off',
    };
    const admin = new pg.Client(database.adminUrl);
    await admin.connect();
    for (const [setting, value] of Object.entries(defaults))
      await admin.query(`alter role ${name} set ${setting} = ${value}`);
    await admin.end();
    const store = await openOn(database);
    const scene = new Scene(store);
    const state = newState(Uint8Array.from({ length: 256 }, (_, i) => i));
    const made = await scene.create();
    const reward = 0.1 + 0.2;
    const step = makeStep(0n, {
      states: [stateRef(state)],
      reward,
      metrics: new Map([['m', Math.PI]]),
      startTime: -1n,
    });
    await scene.append(made, [step], { states: [state] });
    const [read] = await scene.steps(made);
    expect(read?.step).toMatchObject({ reward, rewardSum: reward, startTime: -1n, states: [stateRef(state)] });
    expect((await readWhole(store, scene.namespace, state.digest)).equals(state.data)).toBe(true);
    const { createTime } = await scene.get(made.id);
    expect(Math.abs(Number(createTime / 1_000_000n) - Date.now())).toBeLessThan(60_000);
    // Concurrent writers wait for each other; none gets a serialization failure.
    await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        store.updateTrajectory(scene.namespace, made.id, { metrics: new Map([[`m${i}`, i]]) }),
      ),
    );
    expect((await scene.get(made.id)).metrics.size).toBe(20);
    await store.close();
  });

  it('W11: a database that cannot store all text is refused with the reason', async () => {
    await using database = await createDatabase('postgres');
    const name = new URL(database.url).pathname.slice(1);
    const admin = new pg.Client(postgresUrl());
    await admin.connect();
    await admin.query(`drop database ${name}`);
    await admin.query(`create database ${name} owner ${name} encoding 'LATIN1' locale 'C' template template0`);
    await admin.end();
    expect((await refusedOpen(openOn(database))).message).toMatch(/LATIN1.*UTF-?8/);
  });

  it('D1: a server with fsync = off is refused with the reason', async () => {
    await using server = await startPostgres({ settings: { fsync: 'off' } });
    await using database = await createPostgresDatabase(server.url);
    const error = await refusedOpen(openOn(database));
    expect(error.message).toMatch(/fsync/);
    expect(error.message).not.toContain(new URL(database.url).password);
  });

  it('an unreachable server is reported quickly, in an error without the password', async () => {
    const url = 'postgres://somebody:hunter2@127.0.0.1:1/nothing';
    const begun = performance.now();
    const error = await refusedOpen(openStore({ engine: 'postgres', url }, { logger }));
    expect(error.message).not.toContain('hunter2');
    expect(error.message).toMatch(/database/i);
    expect(performance.now() - begun).toBeLessThan(10_000);
  });
});
