import { rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { NewState } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { collectUnused } from '../store/collection.ts';
import { openOn } from '../store/on_store.ts';
import { readWhole, Scene } from '../store/scene.ts';
import { stateOf } from '../store/state_chains.ts';
import { expectVerified } from '../store/verified.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { makeStep, stateRef } from '../support/steps.ts';
import { databaseOn } from './disk/databases.ts';
import { mountSmallDisk } from './disk/small-disk.ts';
import { reportFigures } from './figures.ts';

const TRAJECTORIES = dose(12, 40);
const STEPS = 60;
const STATES = 8;
/** Room for some transactions, and not for all. Postgres writes its log to another disk. */
const ROOM = { sqlite: 256 * 1024, postgres: 32 * 1024 };

describe.each(ENGINES)('a full disk during work in the background, on %s', (engine) => {
  it('D4: merges and re-encodings end with STORAGE_FULL, lose nothing, and are done when there is room', async () => {
    await using disk = await mountSmallDisk(96, 0);
    await using database = await databaseOn(disk, engine);
    const first = await openOn(database);
    const { namespace } = new Scene(first);
    const made = await storeRows(new Scene(first, namespace));
    const kept = await storeBases(new Scene(first, namespace));
    await first.close();
    // A log of SQLite that is used again would need no room.
    const store = await openOn(database);
    const scene = new Scene(store, namespace);
    const stepsOf = () => Promise.all(made.map((each) => scene.steps(each)));
    const before = await stepsOf();
    const expectKept = async () => {
      expect(await stepsOf()).toEqual(before);
      for (const { digest, data } of kept)
        expect(Buffer.compare(await readWhole(store, namespace, digest), data)).toBe(0);
      await expectVerified(store);
    };
    const merge = async () => {
      for (const { ref } of made)
        for (let left = [{ ref, rest: true }]; left.length > 0; ) left = await store.mergeSteps(left);
    };
    const collect = async () => {
      for (let i = 0; i < STATES; i += 1) await collectUnused(store);
    };
    const ballast = path.join(disk.dir, 'more');
    const refusals: Record<string, string> = {};
    for (const [name, work] of Object.entries({ merge, collect })) {
      await writeFile(ballast, Buffer.alloc((await disk.free()) - ROOM[engine]));
      refusals[name] = await reasonOf(work());
      await expectKept();
      await rm(ballast);
    }
    expect(refusals).toEqual({ merge: 'STORAGE_FULL', collect: 'STORAGE_FULL' });
    await merge();
    await collect();
    await expectKept();
    await store.close();
    reportFigures(`a full disk in the background on ${engine}`, {
      'steps read back': before.flat().length,
      'states read back': kept.length,
      lost: 0,
    });
  });
});

async function reasonOf(work: Promise<unknown>): Promise<string> {
  try {
    await work;
    return 'done';
  } catch (error) {
    return error instanceof AnabranchError ? error.reason : String(error);
  }
}

/** Each step in a row of its own. The text of each is another one, so that merged rows do not become small. */
async function storeRows(scene: Scene): Promise<Trajectory[]> {
  const made: Trajectory[] = [];
  for (let t = 0; t < TRAJECTORIES; t += 1) {
    const trajectory = await scene.create();
    for (let i = 0; i < STEPS; i += 1) {
      const text = Buffer.from(stateOf(t * STEPS + i, 600).data).toString('hex');
      await scene.append(trajectory, [makeStep(BigInt(i), { infoJson: JSON.stringify({ text }) })]);
    }
    made.push(trajectory);
  }
  return made;
}

/** Stores states that depend on bases without references. Returns those that are left. */
async function storeBases(scene: Scene): Promise<NewState[]> {
  const kept: NewState[] = [];
  for (let t = 0; t < TRAJECTORIES; t += 1) {
    const [made, keeper] = [await scene.create(), await scene.create()];
    const states = Array.from({ length: STATES }, (_, i) => stateOf(1000 + t, 64 * 1024, [i]));
    const steps = states.map((state, i) => makeStep(BigInt(i), { states: [stateRef(state)] }));
    await scene.append(made, steps, { states });
    const left = states.at(-1)!;
    await scene.append(keeper, [makeStep(0n, { states: [stateRef(left)] })]);
    await scene.delete(made);
    kept.push(left);
  }
  return kept;
}
