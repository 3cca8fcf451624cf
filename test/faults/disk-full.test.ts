import { randomBytes } from 'node:crypto';
import { rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { undoMigrations } from '../store/earlier_schema.ts';
import { openOn, refusedOpen } from '../store/on_store.ts';
import { readWhole, Scene } from '../store/scene.ts';
import { countRows, outsideSql } from '../store/sql.ts';
import { expectVerified } from '../store/verified.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { makeStep, newState, stateRef } from '../support/steps.ts';
import { fillDisk, fillDiskOfLog } from './disk/filling.ts';
import { mountSmallDisk } from './disk/small-disk.ts';
import { reportFigures } from './figures.ts';

/** Writers beside the one that fills the disk. Whatever they have stored is read back. */
const LOAD = dose({ writers: 2, window: 1 }, { writers: 4, window: 8 });

describe.each(ENGINES)('a full disk, on %s', (engine) => {
  it('D4: only stored steps are acked, writers get STORAGE_FULL, reads succeed, and writes resume when there is room', async () => {
    const filled = await fillDisk(engine, LOAD);
    reportFigures(`disk full, ${engine}`, {
      'acked steps checked': filled.acked,
      lost: filled.lost,
      refusals: filled.refusals.length,
      'refused but stored': filled.refusedButStored,
      'steps read while full': filled.readsWhileFull,
      'bytes free when full': filled.freeBytes,
      'writers resumed after (ms)': Math.round(filled.resumedMs),
    });
    expect(new Set(filled.refusals)).toEqual(new Set(['ResourceExhausted STORAGE_FULL with RetryInfo']));
    expect(filled.refusedButStored).toBe(0);
    expect(filled.readFaults).toEqual([]);
    expect(filled.readsWhileFull).toBeGreaterThan(10);
    expect(filled.lost).toBe(0);
    expect(filled.faults).toEqual([]);
    expect(filled.failures).toEqual([]);
    expect(filled.serverLived).toBe(true);
    expect(filled.serverFaults).toEqual([]);
  });
});

describe('a full disk, under the log of postgres', () => {
  it('D4, D1, A1: no acked step is lost, writers get a retryable error, and continue when Postgres does', async () => {
    const filled = await fillDiskOfLog(LOAD);
    const { acked, lost, refusals, resumedMs } = filled;
    reportFigures('disk full, log of postgres', {
      'acked steps checked': acked,
      lost,
      refusals: refusals.length,
      'writers resumed after (ms)': Math.round(resumedMs),
    });
    const allowed = [
      'ResourceExhausted STORAGE_FULL with RetryInfo',
      'Unavailable DATABASE_UNAVAILABLE with RetryInfo',
    ];
    expect(refusals.filter((refusal) => !allowed.includes(refusal))).toEqual([]);
    expect(refusals).toContain(allowed[1]);
    expect(lost).toBe(0);
    expect(filled.faults).toEqual([]);
    expect(filled.failures).toEqual([]);
    expect(filled.serverLived).toBe(true);
    expect(filled.serverFaults).toEqual([]);
  });
});

describe('a full disk, under a migration of SQLite', () => {
  it('D4, D1: leaves the database as before, and the migration succeeds when there is room', async () => {
    await using disk = await mountSmallDisk(64, 0);
    const url = `sqlite:${path.join(disk.dir, 'data.db')}`;
    const nothing = async () => undefined;
    const database: TestDatabase = {
      engine: 'sqlite',
      url,
      adminUrl: url,
      drop: nothing,
      [Symbol.asyncDispose]: nothing,
    };
    const store = await openOn(database);
    const scene = new Scene(store);
    const made = await scene.create();
    const states = Array.from({ length: 60 }, () => newState(randomBytes(100_000).toString('latin1')));
    for (const [i, state] of states.entries())
      await scene.append(made, [makeStep(BigInt(i), { states: [stateRef(state)] })], { states: [state] });
    const before = await scene.steps(made);
    await store.close();
    const sql = await outsideSql(database);
    await undoMigrations(sql, '0030_state_refs');
    await sql.rows('pragma wal_checkpoint(truncate)');
    const look = async () => [await sql.rows('select * from sqlite_schema order by name'), await countRows(sql)];
    const former = await look();
    const ballast = path.join(disk.dir, 'more');
    await writeFile(ballast, Buffer.alloc((await disk.free()) - 3 * 1024 * 1024));
    expect((await refusedOpen(openOn(database))).message).toContain('is full');
    expect(await look()).toEqual(former);
    await rm(ballast);
    await sql.close();
    const again = await openOn(database);
    expect(await new Scene(again, scene.namespace).steps(made)).toEqual(before);
    for (const state of states)
      expect(await readWhole(again, scene.namespace, state.digest)).toEqual(Buffer.from(state.data));
    await expectVerified(again);
    await again.close();
  });
});
