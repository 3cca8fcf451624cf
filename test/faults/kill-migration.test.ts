import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { openOn } from '../store/on_store.ts';
import { Scene } from '../store/scene.ts';
import { type OutsideSql, outsideSql, sqlitePath } from '../store/sql.ts';
import { expectVerified } from '../store/verified.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { reportFigures } from './figures.ts';
import { expectUnchanged, makeFormer, spawnOpen } from './former/former.ts';

const KILLS = dose(2, 8);
/** Several transactions of the conversion, also within the long trajectory. */
const LONG = dose(13_000, 24_000);

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
    await expectUnchanged(new Scene(store, namespace), made, before);
    expect(await sql.tables()).not.toContain('conversion');
    if (engine === 'sqlite') {
      const file = sqlitePath(database);
      expect([`${file}.migrating`, `${file}.copying`].filter(existsSync)).toEqual([]);
      expect(await sql.rows('pragma auto_vacuum')).toEqual([{ auto_vacuum: 2n }]);
    }
    await store.close();
    await sql.close();
    reportFigures(`kill -9 of the migration on ${engine}`, {
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
    for (const store of stores) await expectUnchanged(new Scene(store, namespace), made, before);
    for (const store of stores) await store.close();
    await sql.close();
  });
});

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
