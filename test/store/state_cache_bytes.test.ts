import process from 'node:process';
import { setImmediate } from 'node:timers/promises';
import v8 from 'node:v8';
import vm from 'node:vm';
import { expect, it } from 'vitest';
import { openStore } from '../../src/store/open.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep, newState, stateRef } from '../support/steps.ts';
import { logger } from './on_store.ts';
import { Scene } from './scene.ts';
import { sqlitePath } from './sql.ts';
import { stateOf } from './state_chains.ts';

const KIB = 1024;
const MIB = 1024 * KIB;
const STATE = 128 * KIB;
const CACHE = 512 * KIB;
/** More than the cache and the segments that wait for merges, and less than one state of each trajectory. */
const ALLOWED = 6 * MIB;
const TRAJECTORIES = 56;

v8.setFlagsFromString('--expose-gc');
const collectGarbage = vm.runInNewContext('gc') as () => void;

async function heldBytes(): Promise<number> {
  for (let i = 0; i < 3; i += 1) {
    collectGarbage();
    await setImmediate();
  }
  return process.memoryUsage().arrayBuffers;
}

it.each([
  ['one by one', 1, 3],
  ['in batches', 5, 10],
  ['in batches that are longer than a chain', 34, 34],
])('S8: the bases of all open trajectories stay within the bytes that are configured, %s', async (_, perBatch, all) => {
  await using database = await createMigratedDatabase('sqlite');
  const opened = { engine: 'sqlite', path: sqlitePath(database) } as const;
  const store = await openStore(opened, { logger, stateCacheBytes: CACHE });
  const scene = new Scene(store);
  const append = async (seed: number) => {
    const made = await scene.create();
    const { data } = stateOf(seed, STATE);
    const changed = (number: number) => {
      const bytes = Buffer.from(data);
      bytes.writeUInt32LE(number);
      return newState(bytes);
    };
    for (let at = 0; at < all; at += perBatch) {
      const states = Array.from({ length: perBatch }, (_, i) => changed(at + i));
      const steps = states.map((state, i) => makeStep(BigInt(at + i), { states: [stateRef(state)] }));
      await scene.append(made, steps, { states });
    }
  };
  await append(0);
  const before = await heldBytes();
  for (let i = 1; i <= TRAJECTORIES; i += 1) await append(i);
  expect((await heldBytes()) - before).toBeLessThan(ALLOWED);
  await store.close();
});
