import { appendFileSync, statfsSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { expect, it } from 'vitest';
import { StoreOpenError } from '../../src/store/contract/store.ts';
import { openOn, refusedOpen } from '../store/on_store.ts';
import { Scene } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { expectVerified } from '../store/verified.ts';
import { addMigration, CONVERTED_AT_ONCE, convertSteps } from '../support/added_migration.ts';
import { ENGINES } from '../support/database.ts';
import { wordStep } from '../support/steps.ts';
import { databaseOn } from './disk/databases.ts';
import { mountSmallDisk, type SmallDisk } from './disk/small-disk.ts';
import { reportFigures } from './figures.ts';

const STEPS = 40 * Number(CONVERTED_AT_ONCE);

/** Fills a disk to the last byte. Returns the file that takes the room. */
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

it.each(ENGINES)(
  'D4: a full disk ends a migration with an error, what was committed is kept, and the next start with room continues, on %s',
  async (engine) => {
    await using disk = await mountSmallDisk(96, 0);
    await using database = await databaseOn(disk, engine);
    const first = await openOn(database);
    const scene = new Scene(first);
    const made = await scene.create();
    await scene.append(
      made,
      Array.from({ length: STEPS }, (_, i) => wordStep(BigInt(i), `${i}`)),
    );
    const before = await scene.steps(made);
    await first.close();
    const sql = await outsideSql(database);

    let [transactions, ballast] = [0, ''];
    const onConverted = () => {
      transactions += 1;
      if (transactions === 2) ballast = fill(disk);
    };
    const isRefused = /disk of the database became full.*make room, and start again/;
    const converted = async () => Number((await sql.rows('select next from converting_steps'))[0]?.next);
    {
      using _ = addMigration(convertSteps({ onConverted }));
      const error = await refusedOpen(openOn(database));
      expect(error).toBeInstanceOf(StoreOpenError);
      expect(error.message).toMatch(isRefused);
    }
    const done = await converted();
    expect(done).toBeGreaterThan(0);
    expect(done).toBeLessThan(STEPS);
    using _ = addMigration(convertSteps());
    expect((await refusedOpen(openOn(database))).message).toMatch(isRefused);
    expect(await converted()).toBeGreaterThanOrEqual(done);
    await rm(ballast);

    const store = await openOn(database);
    const after = await new Scene(store, scene.namespace).steps(made);
    expect(after).toEqual(before);
    await expectVerified(store);
    await store.close();
    expect(await sql.tables()).not.toContain('converting_steps');
    const [texts] = await sql.rows('select count(*) as n from step_texts');
    expect(Number(texts?.n)).toBe(STEPS);
    await sql.close();
    reportFigures(`a full disk during the migration on ${engine}`, { 'steps read back': after.length, lost: 0 });
  },
);
