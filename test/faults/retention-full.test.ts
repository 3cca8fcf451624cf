import { rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import { openOn } from '../store/on_store.ts';
import { readWhole, Scene } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { storedStates } from '../store/state_chains.ts';
import { expectVerified } from '../store/verified.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { databaseOn } from './disk/databases.ts';
import { mountSmallDisk } from './disk/small-disk.ts';
import { reportFigures } from './figures.ts';
import { expectKept, isRemoval, keptStates, makeTrajectories, partsOf, STATES, WHOLE } from './retained.ts';

const TRAJECTORIES = dose(20, 64);
/** Room for some of the transactions of retention, and not for all. Postgres writes its log to another disk. */
const ROOM = { sqlite: 256 * 1024, postgres: 8 * 1024 };

describe.each(ENGINES)('a full disk during retention, on %s', (engine) => {
  it('S13, S14, D4: retention ends with STORAGE_FULL, loses nothing that it keeps, and removes the rest when there is room', async () => {
    await using disk = await mountSmallDisk(96, 0);
    await using database = await databaseOn(disk, engine);
    const first = await openOn(database);
    const { namespace } = new Scene(first);
    const made = await makeTrajectories(new Scene(first, namespace), TRAJECTORIES);

    await first.close();
    // A log of SQLite that is used again would need no room.
    const store = await openOn(database);
    const scene = new Scene(store, namespace);
    const ballast = path.join(disk.dir, 'more');
    await writeFile(ballast, Buffer.alloc((await disk.free()) - ROOM[engine]));

    let removed = 0;
    const refusals: string[] = [];
    for (const policy of [STATES, WHOLE]) {
      try {
        for await (const part of (await store.retain(namespace, policy, { apply: true })).parts) {
          if (isRemoval(part)) removed += 1;
        }
      } catch (error) {
        refusals.push(error instanceof AnabranchError ? error.reason : String(error));
      }
    }
    expect(new Set(refusals)).toEqual(new Set(['STORAGE_FULL']));
    expect(removed).toBeGreaterThan(0);
    await expectVerified(store);
    for (const each of made) await expectKept(scene, each);
    const left = (await partsOf(scene, false)).filter(isRemoval).length;
    expect(left).toBeGreaterThan(0);

    await rm(ballast);
    expect((await partsOf(scene, true)).filter(isRemoval)).toHaveLength(left);
    expect((await partsOf(scene, true)).filter(isRemoval)).toEqual([]);
    // As maintenance does: of a deletion that has begun, the rest is purged.
    while (await store.purgeDeleted(500));
    const sql = await outsideSql(database);
    const stored = async () => [...(await storedStates(sql, namespace)).keys()].sort();
    const kept = keptStates(made);
    for (let i = 0; i < 100 && (await stored()).length > kept.length; i += 1) await store.collectStates(24, 500);
    expect(await stored()).toEqual(kept.map(({ digest }) => digest).sort());
    for (const { digest, data } of kept)
      expect(Buffer.compare(await readWhole(store, namespace, digest), data)).toBe(0);
    for (const each of made) await expectKept(scene, each);
    await expectVerified(store);
    reportFigures(`disk full during retention, ${engine}`, {
      'parts removed before': removed,
      'parts removed with room': left,
      'kept states read back': kept.length,
      lost: 0,
    });
    await sql.close();
    await store.close();
  });
});
