import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, statfsSync, writeFileSync } from 'node:fs';
import { readdir, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { openSqlite } from '../../src/store/sqlite/open.ts';
import { migrateIntoNewFile } from '../../src/store/sqlite_file/new_file.ts';
import { undoMigrations } from '../store/earlier_schema.ts';
import { openOn, refusedOpen } from '../store/on_store.ts';
import { Scene } from '../store/scene.ts';
import { countRows, type OutsideSql, outsideSql, sqlitePath } from '../store/sql.ts';
import { expectVerified } from '../store/verified.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep, newState, smallRef, stateRef } from '../support/steps.ts';
import { databaseOn } from './disk/databases.ts';
import { mountSmallDisk } from './disk/small-disk.ts';
import { reportFigures } from './figures.ts';

const KILLS = dose(3, 8);
/** Several transactions of the conversion, also within the long trajectory. */
const LONG = 24_000;
const TREES = 12;

describe.each(ENGINES)('migration of a database before segments, on %s', (engine) => {
  it('D3: kills at any moment of the migration lose nothing, and the next start continues', async () => {
    await using database = await createMigratedDatabase(engine);
    const sql = await outsideSql(database);
    const { namespace, made, before } = await makeFormer(database, sql, LONG);
    let kills = 0;
    let seen = 0n;
    for (; kills < KILLS; kills += 1) {
      const child = spawnOpen(database);
      // Each kill falls after more steps were converted and committed than before the last one.
      for (;;) {
        const done = await convertedSteps(database, sql);
        if (done === undefined ? child.exitCode !== null : done > seen) {
          seen = done ?? seen;
          break;
        }
        await delay(1);
      }
      if (child.exitCode !== null) break;
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
    expect(kills).toBeGreaterThan(0);
    expect(seen).toBeGreaterThan(0n);
    const store = await openOn(database);
    await expectVerified(store);
    expect(await lookAt(new Scene(store, namespace), made)).toEqual(before);
    expect(await sql.tables()).not.toContain('conversion');
    if (engine === 'sqlite') {
      const file = sqlitePath(database);
      expect([`${file}.migrating`, `${file}.copying`].filter(existsSync)).toEqual([]);
      expect(await sql.rows('pragma auto_vacuum')).toEqual([{ auto_vacuum: 2n }]);
    }
    await store.close();
    await sql.close();
    await reportFigures(`kill -9 of the migration on ${engine}`, {
      kills,
      'steps converted at the last kill': Number(seen),
      lost: 0,
    });
  });

  it('D3: two servers that start at once migrate together', async () => {
    await using database = await createMigratedDatabase(engine);
    const sql = await outsideSql(database);
    const { namespace, made, before } = await makeFormer(database, sql, 2000);
    const opening = engine === 'postgres' ? [openOn(database), openOn(database)] : [openOn(database)];
    const stores = await Promise.all(opening);
    await expectVerified(stores[0]!);
    for (const store of stores) expect(await lookAt(new Scene(store, namespace), made)).toEqual(before);
    for (const store of stores) await store.close();
    await sql.close();
  });
});

describe('migration of an SQLite file on a small disk', () => {
  it('D4: is refused before it begins, and does not change the file, if the disk has no room for the new one', async () => {
    await using disk = await mountSmallDisk(96, 0);
    await using database = await databaseOn(disk, 'sqlite');
    const sql = await outsideSql(database);
    const { namespace, made, before } = await makeFormer(database, sql, 5000);
    const ballast = path.join(disk.dir, 'more');
    await writeFile(ballast, Buffer.alloc((await disk.free()) - 1024 * 1024));
    const error = await refusedOpen(openOn(database));
    expect(error.message).toMatch(/needs \d+ free bytes, and \d+ are free: make room/);
    expect(existsSync(`${sqlitePath(database)}.migrating`)).toBe(false);
    expect(await sql.rows(`select name from kysely_migration where name = '0018_segments'`)).toEqual([]);
    await writeFile(ballast, '');
    const store = await openOn(database);
    expect(await lookAt(new Scene(store, namespace), made)).toEqual(before);
    await store.close();
    await sql.close();
  });
});

describe('migration of an SQLite file while the disk becomes full', () => {
  it('D4: leaves the old file as it was and removes the new one, and the next start with room succeeds', async () => {
    await using disk = await mountSmallDisk(192, 0);
    await using database = await databaseOn(disk, 'sqlite');
    const sql = await outsideSql(database);
    const { namespace, made, before } = await makeFormer(database, sql, LONG);
    const look = async () => [await sql.rows('select * from sqlite_schema order by name'), await countRows(sql)];
    const former = await look();
    const ballast = path.join(disk.dir, 'more');
    const failed = (error: unknown) => expect.unreachable(String(error));
    let transactions = 0;
    const onProgress = () => {
      transactions += 1;
      if (transactions > 1) return;
      const { bavail, bsize } = statfsSync(disk.dir);
      writeFileSync(ballast, Buffer.alloc(bavail * bsize));
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
    expect(transactions).toBeGreaterThan(0);
    expect(await look()).toEqual(former);
    const others = (await readdir(disk.dir)).filter((name) => !/^data\.db(-wal|-shm|\.lock|\.holder)?$/.test(name));
    expect(others.sort()).toEqual(['ballast', 'more']);
    await rm(ballast);
    const store = await openOn(database);
    expect(await lookAt(new Scene(store, namespace), made)).toEqual(before);
    await expectVerified(store);
    await store.close();
    await sql.close();
  });
});

/** Stores trajectories, and reverts the database to the schema before segments. Returns what is read of them. */
async function makeFormer(database: TestDatabase, sql: OutsideSql, length: number) {
  const store = await openOn(database);
  const scene = new Scene(store);
  const made: Trajectory[] = [];
  const [large] = [newState('large'.repeat(2000))];
  const append = async (trajectory: Trajectory, from: number, to: number) => {
    for (let at = from; at < to; at += 250) {
      const steps = Array.from({ length: Math.min(250, to - at) }, (_, i) => {
        const number = at + i;
        const states = number % 50 === 0 ? [stateRef(large), smallRef(newState(`${number}`), 'small')] : [];
        return makeStep(BigInt(number), { reward: number % 7, startTime: 5n, endTime: BigInt(1e9 + number), states });
      });
      await scene.append(trajectory, steps, { states: [large] });
    }
  };
  const long = await scene.create();
  await append(long, 0, length);
  made.push(long);
  for (let i = 0; i < TREES; i += 1) {
    const branch = await scene.branch(made.at(-1)!, BigInt(100 + i));
    await append(branch, 101 + i, 400 + i);
    made.push(branch);
  }
  const before = await lookAt(scene, made);
  const { namespace } = scene;
  await store.close();
  await undoMigrations(sql, '0018_segments');
  return { namespace, made, before };
}

async function lookAt(scene: Scene, made: readonly Trajectory[]) {
  return Promise.all(made.map(async (each) => ({ row: await scene.get(each.id), steps: await scene.steps(each) })));
}

function spawnOpen({ engine, url }: TestDatabase) {
  const opened = engine === 'sqlite' ? { engine, path: url.replace(/^sqlite:/, '') } : { engine, url };
  const program = path.join(import.meta.dirname, 'open-store.ts');
  return spawn(process.execPath, [program, JSON.stringify(opened)], { stdio: ['ignore', 'ignore', 'inherit'] });
}

/** Steps that the interrupted or running conversion has committed. Undefined before it begins, and after its end. */
async function convertedSteps(database: TestDatabase, sql: OutsideSql): Promise<bigint | undefined> {
  if (database.engine === 'postgres') {
    const [table] = await sql.rows(`select to_regclass('anabranch.conversion') is not null as found`);
    return table?.found === true ? doneSteps(sql.rows) : undefined;
  }
  const file = `${sqlitePath(database)}.migrating`;
  if (!existsSync(file)) return undefined;
  const copy = new DatabaseSync(file, { readOnly: true, timeout: 5000, readBigInts: true });
  try {
    return await doneSteps(async (text) => copy.prepare(text).all() as Record<string, unknown>[]);
  } finally {
    copy.close();
  }
}

async function doneSteps(rows: OutsideSql['rows']): Promise<bigint | undefined> {
  try {
    const [row] = await rows('select done_steps from conversion');
    return row === undefined ? undefined : BigInt(`${row.done_steps}`);
  } catch (error) {
    if (/no such table|does not exist/.test(String(error))) return undefined;
    throw error;
  }
}
