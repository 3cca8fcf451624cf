import { once } from 'node:events';
import { appendFileSync, existsSync, statfsSync, statSync } from 'node:fs';
import { readdir, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { openPostgres } from '../../src/store/postgres/open.ts';
import { openSqlite } from '../../src/store/sqlite/open.ts';
import { migrateIntoNewFile } from '../../src/store/sqlite_file/new_file.ts';
import { logger, openOn, refusedOpen } from '../store/on_store.ts';
import { Scene } from '../store/scene.ts';
import { countRows, type OutsideSql, outsideSql, sqlitePath } from '../store/sql.ts';
import { expectVerified } from '../store/verified.ts';
import type { TestDatabase } from '../support/database.ts';
import { databaseOn } from './disk/databases.ts';
import { mountSmallDisk, type SmallDisk } from './disk/small-disk.ts';
import { reportFigures } from './figures.ts';
import { expectUnchanged, makeFormer, spawnOpen } from './former/former.ts';

/** Steps of the long trajectory: several transactions of the conversion. */
const LONG = 24_000;

const failed = (error: unknown) => expect.unreachable(String(error));

type Former = Awaited<ReturnType<typeof makeFormer>>;

/** Everything in the file, apart from pages: its schema and the numbers of rows. */
async function schemaAndRows(sql: OutsideSql) {
  return [await sql.rows('select * from sqlite_schema order by name'), await countRows(sql)];
}

/**
 * Fills a disk to the last byte, also while a process that is being stopped still writes to it. Returns the file that
 * takes the room.
 */
function fill({ dir }: SmallDisk): string {
  const ballast = path.join(dir, 'more');
  const free = () => {
    const { bavail, bsize } = statfsSync(dir);
    return bavail * bsize;
  };
  for (let bytes = free(); bytes > 0; bytes = free()) {
    try {
      appendFileSync(ballast, Buffer.alloc(bytes));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
    }
  }
  return ballast;
}

/** The next start with room converts everything. */
async function expectMigrated(database: TestDatabase, { namespace, made, before }: Former): Promise<void> {
  const store = await openOn(database);
  const after = await expectUnchanged(new Scene(store, namespace), made, before);
  await expectVerified(store);
  await store.close();
  reportFigures(`a full disk during the migration on ${database.engine}`, {
    'steps read back': after.flatMap(({ steps }) => steps).length,
    lost: 0,
  });
}

describe('migration of an SQLite file on a full disk', () => {
  it('D4: is refused before it begins, and does not change the file, if the disk has no room for the new one', async () => {
    await using disk = await mountSmallDisk(96, 0);
    await using database = await databaseOn(disk, 'sqlite');
    const sql = await outsideSql(database);
    const former = await makeFormer(database, sql, 5000);
    const ballast = path.join(disk.dir, 'more');
    await writeFile(ballast, Buffer.alloc((await disk.free()) - 1024 * 1024));
    const error = await refusedOpen(openOn(database));
    expect(error.message).toMatch(/needs \d+ free bytes, and \d+ are free: make room/);
    expect(existsSync(`${sqlitePath(database)}.migrating`)).toBe(false);
    expect(await sql.rows(`select name from kysely_migration where name = '0018_segments'`)).toEqual([]);
    await rm(ballast);
    await expectMigrated(database, former);
    await sql.close();
  });

  it('D4: the room for rows that are still in the log of the old file is required, too', async () => {
    await using disk = await mountSmallDisk(96, 0);
    await using database = await databaseOn(disk, 'sqlite');
    const sql = await outsideSql(database);
    await makeFormer(database, sql, 5000);
    const needed = async () =>
      Number(/needs (\d+) free bytes/.exec((await refusedOpen(openOn(database))).message)?.[1]);
    await sql.rows('pragma wal_checkpoint(truncate)');
    const ballast = path.join(disk.dir, 'more');
    await writeFile(ballast, Buffer.alloc((await disk.free()) - 3 * 1024 * 1024));
    const before = await needed();
    await sql.rows('create table more as select randomblob(1000000) as bytes');
    const log = statSync(`${sqlitePath(database)}-wal`).size;
    expect(log).toBeGreaterThan(1_000_000);
    expect(await needed()).toBeGreaterThanOrEqual(before + 2 * log);
    await sql.close();
  });

  it('D4: while the old file is copied, the copy is removed, the old file stays as it was, and the next start succeeds', async () => {
    await using disk = await mountSmallDisk(192, 0);
    await using database = await databaseOn(disk, 'sqlite');
    const sql = await outsideSql(database);
    const former = await makeFormer(database, sql, LONG);
    await sql.rows('pragma wal_checkpoint(truncate)');
    const before = await schemaAndRows(sql);
    const file = sqlitePath(database);
    const copied = () => (existsSync(`${file}.copying`) ? statSync(`${file}.copying`).size : 0);
    for (;;) {
      const child = spawnOpen(database, 'pipe');
      const messages = text(child.stderr!);
      const ended = once(child, 'exit');
      while (child.exitCode === null && copied() === 0 && !existsSync(`${file}.migrating`)) await delay(0);
      child.kill('SIGSTOP');
      // A copy that is complete already is made again.
      if (copied() === 0 || copied() > statSync(file).size / 2) {
        child.kill('SIGKILL');
        await ended;
        for (const name of ['.copying', '.migrating']) await rm(`${file}${name}`, { force: true });
        await sql.rows(`delete from kysely_migration where name = '0018_segments'`);
        continue;
      }
      const ballast = fill(disk);
      child.kill('SIGCONT');
      await ended;
      expect(await messages).toMatch(/the disk became full.*make room, and start again/);
      expect(await schemaAndRows(sql)).toEqual(before);
      expect(await othersOn(disk)).toEqual(['ballast', 'more']);
      await rm(ballast);
      break;
    }
    await expectMigrated(database, former);
    await sql.close();
  });

  it('D4: while steps are converted, the new file is removed, the old one stays as it was, and the next start succeeds', async () => {
    await using disk = await mountSmallDisk(192, 0);
    await using database = await databaseOn(disk, 'sqlite');
    const sql = await outsideSql(database);
    const former = await makeFormer(database, sql, LONG);
    const before = await schemaAndRows(sql);
    let ballast = '';
    const onProgress = () => {
      if (ballast === '') ballast = fill(disk);
    };
    const migrating = migrateIntoNewFile(
      sqlitePath(database),
      async (copy) => {
        await (await openSqlite(copy, failed, { onProgress })).close();
        return [];
      },
      failed,
    );
    await expect(migrating).rejects.toThrow(/the disk became full.*make room, and start again/);
    expect(ballast).not.toBe('');
    expect(await schemaAndRows(sql)).toEqual(before);
    expect(await othersOn(disk)).toEqual(['ballast', 'more']);
    await rm(ballast);
    await expectMigrated(database, former);
    await sql.close();
  });

  /** Files that the database does not consist of. */
  async function othersOn({ dir }: SmallDisk): Promise<string[]> {
    const names = await readdir(dir);
    return names.filter((name) => !/^data\.db(-wal|-shm|\.lock|\.holder)?$/.test(name)).sort();
  }
});

describe('migration of a Postgres database on a full disk', () => {
  it('D4: while steps are converted, the start fails, what was converted is kept, and the next start continues', async () => {
    await using disk = await mountSmallDisk(192, 0);
    await using database = await databaseOn(disk, 'postgres');
    const sql = await outsideSql(database);
    const former = await makeFormer(database, sql, LONG);
    const [{ n }] = (await sql.rows('select count(*) as n from steps')) as [{ n: unknown }];
    let transactions = 0;
    let ballast = '';
    // The first transaction has committed when the second one reports.
    const onProgress = () => {
      transactions += 1;
      if (transactions === 2) ballast = fill(disk);
    };
    const isRefused = /the disk of the database became full.*make room, and start again/;
    const opening = openPostgres({ url: database.url }, logger, failed, { onProgress });
    await expect(opening).rejects.toThrow(isRefused);
    const converted = async () => Number((await sql.rows('select done_steps from conversion'))[0]?.done_steps);
    const done = await converted();
    expect(done).toBeGreaterThan(0);
    expect(await sql.rows('select count(*) as n from former_steps')).toEqual([{ n }]);
    expect((await refusedOpen(openOn(database))).message).toMatch(isRefused);
    expect(await converted()).toBeGreaterThanOrEqual(done);
    await rm(ballast);
    await expectMigrated(database, former);
    expect(await sql.tables()).not.toContain('conversion');
    await sql.close();
  });
});
