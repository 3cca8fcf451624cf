import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { DatabaseSync } from 'node:sqlite';
import pg from 'pg';
import { afterEach, describe, expect, it, vi } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { openStore } from '../../src/store/open.ts';
import {
  createDatabase,
  createPostgresDatabase,
  ENGINES,
  postgresUrl,
  type TestDatabase,
} from '../support/database.ts';
import { startPostgres } from '../support/postgres.ts';
import { newState, newStep, sha256, stateRef, wordStep } from '../support/steps.ts';
import { logger, openOn } from './on_store.ts';
import { newTrajectory, readWhole, Scene } from './scene.ts';
import { describeSchema } from './schema.ts';
import { outsideSql, sqlitePath } from './sql.ts';

async function refusedOpen(opening: Promise<Store>): Promise<Error> {
  try {
    await (await opening).close();
  } catch (error) {
    return error as Error;
  }
  throw new Error('the store was opened');
}

describe.each(ENGINES)('opening a store, on %s', (engine) => {
  it('makes the schema that is committed, and nothing else', async () => {
    await using database = await createDatabase(engine);
    await (await openOn(database)).close();
    await expect(await describeSchema(database)).toMatchFileSnapshot(`./schema.${engine}.txt`);
  });

  it('again changes nothing and keeps everything', async () => {
    await using database = await createDatabase(engine);
    const first = await openOn(database);
    const before = new Scene(first);
    const state = newState('kept');
    const made = await before.create({ labels: new Map([['k', 'v']]) });
    await before.append(made, [newStep(0n, { states: [stateRef(state)], reward: Number.NaN })], { states: [state] });
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

  it('B3: gives no row key again, not even that of the newest one, deleted before the restart', async () => {
    await using database = await createDatabase(engine);
    const first = await openOn(database);
    const before = new Scene(first);
    const made = await before.create();
    await before.delete(made);
    await first.close();
    const second = await openOn(database);
    expect((await new Scene(second).create()).ref.key > made.ref.key).toBe(true);
    await second.close();
  });

  it('refuses a schema of a newer version, says so, and changes nothing', async () => {
    await using database = await createDatabase(engine);
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

  it('D3: a migration that fails half-way leaves nothing behind, and runs once what stood in its way is gone', async () => {
    await using database = await createDatabase(engine);
    const inTheWay = async (text: string) => {
      if (engine === 'sqlite') {
        const db = new DatabaseSync(sqlitePath(database));
        db.exec(text);
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

  it('refuses to work after it was closed, with an error and without hanging; closing twice is safe', async () => {
    await using database = await createDatabase(engine);
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
      finish: () => upload.finish(sha256('')),
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

  it('ends its work before it is closed: what was acked by then is there, what was not has an error', async () => {
    await using database = await createDatabase(engine);
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

  it('describes itself by engine and place, without secrets', async () => {
    await using database = await createDatabase(engine);
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

describe('opening a store, on postgres', () => {
  it('from many instances at once on an empty database makes one schema, and all of them work', async () => {
    await using database = await createDatabase('postgres');
    const stores = await Promise.all(Array.from({ length: 5 }, () => openOn(database)));
    for (const store of stores) await new Scene(store).createWith(['a']);
    await Promise.all(stores.map((store) => store.close()));
    const sql = await outsideSql(database);
    const migrations = await sql.rows('select name from kysely_migration');
    expect(new Set(migrations.map(({ name }) => name)).size).toBe(migrations.length);
    await sql.close();
  });

  it('design 6: keeps to a schema of its own; a role that may connect and create a schema suffices', async () => {
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
    'D1: a role or database whose synchronous_commit is %s never gets an ack that a power cut could lose',
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
      // It was opened: then the transactions that append must override it. `local` is durable on this server.
      const scene = new Scene(store);
      const made = await scene.create();
      const sql = await outsideSql(database);
      await sql.rows(`create table witness (setting text)`);
      await sql.rows(`create function witness() returns trigger language plpgsql as $$ begin
      insert into anabranch.witness values (current_setting('synchronous_commit')); return new; end $$`);
      await sql.rows(`create trigger witness before insert on steps for each row execute function witness()`);
      await scene.append(made, [wordStep(0n, 'a')]);
      const [seen] = await sql.rows('select setting from anabranch.witness');
      expect(['on', 'local', 'remote_write', 'remote_apply']).toContain(seen?.setting);
      await sql.close();
      await store.close();
    },
  );

  it('D1: a role whose synchronous_commit is turned off while the store is open gets no ack either', async () => {
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

  it('W11: is not misled by what a role has for defaults: forms of numbers, times and bytes, isolation, zone', async () => {
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
    const step = newStep(0n, { states: [stateRef(state)], reward, metrics: new Map([['m', Math.PI]]), startTime: -1n });
    await scene.append(made, [step], { states: [state] });
    const [read] = await scene.steps(made);
    expect(read?.step).toMatchObject({ reward, rewardSum: reward, startTime: -1n, states: [stateRef(state)] });
    expect((await readWhole(store, scene.namespace, state.digest)).equals(state.data)).toBe(true);
    const { createTime } = await scene.get(made.id);
    expect(Math.abs(Number(createTime / 1_000_000n) - Date.now())).toBeLessThan(60_000);
    // Writers that meet wait for each other; none is told of a conflict between transactions.
    await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        store.updateTrajectory(scene.namespace, made.id, { metrics: new Map([[`m${i}`, i]]) }),
      ),
    );
    expect((await scene.get(made.id)).metrics.size).toBe(20);
    await store.close();
  });

  it('W11: a database that cannot hold all text is refused, and told why', async () => {
    await using database = await createDatabase('postgres');
    const name = new URL(database.url).pathname.slice(1);
    const admin = new pg.Client(postgresUrl());
    await admin.connect();
    await admin.query(`drop database ${name}`);
    await admin.query(`create database ${name} owner ${name} encoding 'LATIN1' locale 'C' template template0`);
    await admin.end();
    expect((await refusedOpen(openOn(database))).message).toMatch(/LATIN1.*UTF-?8/);
  });

  it('D1: a server with fsync = off is refused, and told why', async () => {
    await using server = await startPostgres({ settings: { fsync: 'off' } });
    await using database = await createPostgresDatabase(server.url);
    const error = await refusedOpen(openOn(database));
    expect(error.message).toMatch(/fsync/);
    expect(error.message).not.toContain(new URL(database.url).password);
  });

  it('a server that is not there is told in words, without the password, and soon', async () => {
    const url = 'postgres://somebody:hunter2@127.0.0.1:1/nothing';
    const begun = performance.now();
    const error = await refusedOpen(openStore({ engine: 'postgres', url }, { logger }));
    expect(error.message).not.toContain('hunter2');
    expect(error.message).toMatch(/database/i);
    expect(performance.now() - begun).toBeLessThan(10_000);
  });
});

describe('opening a store, on sqlite', () => {
  const holders: ChildProcess[] = [];
  afterEach(async () => {
    vi.restoreAllMocks();
    for (const holder of holders.splice(0)) {
      if (holder.exitCode !== null || holder.signalCode !== null) continue;
      holder.kill('SIGKILL');
      await once(holder, 'exit');
    }
  });

  /** Another process that opens a store on the file; resolves with what it says first: `open`, or why not. */
  async function anotherProcess(file: string): Promise<{ said: string; child: ChildProcess }> {
    const entry = JSON.stringify(path.resolve(import.meta.dirname, '../../src/store/open.ts'));
    const program = `import { openStore } from ${entry};
      const logger = { warn() {}, error() {} };
      try {
        await openStore({ engine: 'sqlite', path: ${JSON.stringify(file)} }, { logger });
        console.log('open');
        setInterval(() => {}, 1000);
      } catch (error) { console.log(error.message); }`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    holders.push(child);
    const [said] = (await once(child.stdout as NodeJS.ReadableStream, 'data')) as [Buffer];
    return { said: said.toString().trim(), child };
  }

  it('design 6: a second process is refused and told who holds the file; one that was killed holds it no more', async () => {
    await using database = await createDatabase('sqlite');
    const file = sqlitePath(database);
    const first = await anotherProcess(file);
    expect(first.said).toBe('open');

    const error = await refusedOpen(openOn(database));
    expect(error.message).toContain(file);
    expect(error.message).toContain(`${first.child.pid}`);
    const third = await anotherProcess(file);
    expect(third.said).toContain(`${first.child.pid}`);

    first.child.kill('SIGKILL');
    await once(first.child, 'exit');
    const store = await openOn(database);
    await new Scene(store).createWith(['a']);
    const refused = await anotherProcess(file);
    expect(refused.said).toContain(`${process.pid}`);
    await store.close();
    expect((await anotherProcess(file)).said).toBe('open');
  });

  it('design 6: a second store of the same process is refused too, and the first goes on', async () => {
    await using database = await createDatabase('sqlite');
    const store = await openOn(database);
    const error = await refusedOpen(openOn(database));
    expect(error.message).toContain(`${process.pid}`);
    await new Scene(store).createWith(['a']);
    await store.close();
  });

  it('design 6: the file under another name is the same file', async () => {
    await using database = await createDatabase('sqlite');
    const file = sqlitePath(database);
    const store = await openOn(database);
    const link = path.join(path.dirname(file), 'link.db');
    symlinkSync(file, link);
    const error = await refusedOpen(openStore({ engine: 'sqlite', path: link }, { logger }));
    expect(error.message).toContain(`${process.pid}`);
    await store.close();
  });

  it('design 6: others can read the file while it is held', async () => {
    await using database = await createDatabase('sqlite');
    const store = await openOn(database);
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    const reader = new DatabaseSync(sqlitePath(database), { readOnly: true });
    expect(reader.prepare('select id, next_step_number as n from trajectories').get()).toMatchObject({
      id: made.id,
      n: 1,
    });
    // A reader in the middle of its work does not stop the writer.
    reader.exec('begin');
    reader.prepare('select count(*) from steps').get();
    await scene.appendWords(made, ['b']);
    reader.exec('commit');
    expect(reader.prepare('select count(*) as n from steps').get()).toMatchObject({ n: 2 });
    reader.close();
    await store.close();
  });

  it('makes the folder of the file', async () => {
    const folder = mkdtempSync(path.join(tmpdir(), 'anabranch-open-'));
    try {
      const file = path.join(folder, 'not', 'yet here', 'dätä.db');
      const store = await openStore({ engine: 'sqlite', path: file }, { logger });
      await store.createTrajectory({ namespace: 'n', actor: 'a' }, newTrajectory());
      await store.close();
      expect(existsSync(file)).toBe(true);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });

  it('a file that is no database is refused, named, and left as it is', async () => {
    await using database = await createDatabase('sqlite');
    const file = sqlitePath(database);
    const { readFileSync, writeFileSync } = await import('node:fs');
    const text = 'this is a letter, not a database\n'.repeat(200);
    writeFileSync(file, text);
    const error = await refusedOpen(openOn(database));
    expect(error.message).toContain(file);
    expect(readFileSync(file, 'utf8')).toBe(text);
  });

  it('D1: the connection that writes is WAL and synchronous = FULL, on the first open and on every later one', async () => {
    await using database = await createDatabase('sqlite');
    const seen = new Set<DatabaseSync>();
    const prepare = DatabaseSync.prototype.prepare;
    vi.spyOn(DatabaseSync.prototype, 'prepare').mockImplementation(function (this: DatabaseSync, ...rest) {
      seen.add(this);
      return prepare.apply(this, rest);
    });
    for (let open = 0; open < 3; open += 1) {
      seen.clear();
      const store = await openOn(database);
      const scene = new Scene(store);
      await scene.createWith(['a']);
      const writers = [...seen].filter((each) => each.location() === sqlitePath(database) && canWrite(each));
      expect(writers.length).toBeGreaterThan(0);
      for (const writer of writers) {
        expect(prepare.call(writer, 'pragma synchronous').get()).toMatchObject({ synchronous: 2 });
        expect(prepare.call(writer, 'pragma journal_mode').get()).toMatchObject({ journal_mode: 'wal' });
      }
      await store.close();
    }
  });

  function canWrite(database: DatabaseSync): boolean {
    try {
      database.exec('begin immediate; rollback');
      return true;
    } catch {
      return false;
    }
  }
});

describe('what a killed process leaves, on sqlite', () => {
  it('D1: every step that was acked is there after SIGKILL in the middle of appending', async () => {
    await using database = await createDatabase('sqlite');
    const acked = await appendUntilKilled(database);
    const store = await openOn(database);
    const scene = new Scene(store, 'killed');
    const [made] = await store.listTrajectories('killed', {}, { limit: 1, after: undefined });
    const words = await scene.words(made as NonNullable<typeof made>);
    expect(words.length).toBeGreaterThanOrEqual(acked);
    expect(words).toEqual(words.map((_, i) => `${i}`));
    await store.close();
  });

  /** A process that appends and tells each ack; it is killed with an append under way. Gives how many acks it told. */
  async function appendUntilKilled(database: TestDatabase): Promise<number> {
    const at = (file: string) => JSON.stringify(path.resolve(import.meta.dirname, file));
    const program = `import { openStore } from ${at('../../src/store/open.ts')};
      import { Scene } from ${at('scene.ts')};
      import { wordStep } from ${at('../support/steps.ts')};
      const store = await openStore({ engine: 'sqlite', path: ${JSON.stringify(sqlitePath(database))} }, { logger: { warn() {}, error() {} } });
      const scene = new Scene(store, 'killed');
      const made = await scene.create();
      for (let n = 0n; ; n += 1n) {
        await scene.append(made, [wordStep(n, String(n))]);
        process.stdout.write(n + '\\n');
      }`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let told = '';
    child.stdout.on('data', (chunk: Buffer) => {
      told += chunk.toString();
      if (told.split('\n').length > 200) child.kill('SIGKILL');
    });
    await once(child, 'close');
    return told.split('\n').length - 1;
  }
});
