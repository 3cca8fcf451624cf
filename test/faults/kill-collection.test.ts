import { spawn } from 'node:child_process';
import { once } from 'node:events';
import process from 'node:process';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { NewState } from '../../src/domain/step.ts';
import { collectUnused } from '../store/collection.ts';
import { openedAs, openOn } from '../store/on_store.ts';
import { readWhole, Scene } from '../store/scene.ts';
import { countRows, outsideSql } from '../store/sql.ts';
import { stateOf, storedStates } from '../store/state_chains.ts';
import { expectVerified } from '../store/verified.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { programFile } from '../support/program.ts';
import { makeStep, stateRef } from '../support/steps.ts';
import { reportFigures } from './figures.ts';
import { seededRandom } from './random.ts';

const KILLS = dose(2, 12);
const TRAJECTORIES = dose(30, 60);
const STATES = 12;

describe.each(ENGINES)('kill -9 of the collection of states on %s', (engine) => {
  it('S8, D5: no kill loses a state that steps refer to, and what is left over is collected later', async () => {
    const random = seededRandom();
    await using database = await createMigratedDatabase(engine);
    const sql = await outsideSql(database);
    const store = await openOn(database);
    const { namespace } = new Scene(store);
    const kept = await storeChains(new Scene(store, namespace));
    await store.close();
    const countRewritten = async () => {
      const states = await storedStates(sql, namespace);
      return kept.filter(({ digest }) => states.get(digest)?.base === undefined).length;
    };
    let rewritten = 0;
    for (let kill = 0; kill < KILLS; kill += 1) {
      // Every other kill falls after a rewrite.
      const enough = kill % 2 === 0 ? 0 : Math.min(rewritten + 1, kept.length);
      const isDue = async () => (await countRewritten()) >= enough;
      await killCollector(database, isDue, random.between(0, 100));
      const opened = await openOn(database);
      await expectVerified(opened).finally(() => opened.close());
      rewritten = await countRewritten();
    }
    expect(rewritten, 'no kill fell after a rewrite').toBeGreaterThan(0);
    const last = await openOn(database);
    for (let i = 0; i < STATES; i += 1) await collectUnused(last);
    expect([...(await storedStates(sql, namespace)).keys()].sort()).toEqual(kept.map(({ digest }) => digest).sort());
    for (const { digest, data } of kept) expect(Buffer.compare(await readWhole(last, namespace, digest), data)).toBe(0);
    reportFigures(`kill -9 of the collection of states on ${engine}`, {
      kills: KILLS,
      states: kept.length,
      rewritten,
      lost: 0,
    });
    const scene = new Scene(last, namespace);
    const page = { limit: 1000, after: undefined };
    for (const { id } of await last.listTrajectories(namespace, {}, page)) await scene.delete({ id });
    await collectUnused(last);
    expect((await countRows(sql, namespace)).states).toBe(0);
    await last.close();
    await sql.close();
  });
});

/** Stores chains of states, and deletes all but one of each chain. Returns those that are left. */
async function storeChains(scene: Scene): Promise<NewState[]> {
  const kept: NewState[] = [];
  for (let t = 0; t < TRAJECTORIES; t += 1) {
    const [made, keeper] = [await scene.create(), await scene.create()];
    const states = Array.from({ length: STATES }, (_, i) => stateOf(t, 16 * 1024, [i]));
    const steps = states.map((state, i) => makeStep(BigInt(i), { states: [stateRef(state)] }));
    await scene.append(made, steps, { states });
    const left = states[1 + (t % (STATES - 1))]!;
    await scene.append(keeper, [makeStep(0n, { states: [stateRef(left)] })]);
    await scene.delete(made);
    kept.push(left);
  }
  return kept;
}

/** Kills the process some time after a condition holds. */
async function killCollector(database: TestDatabase, isDue: () => Promise<boolean>, afterMs: number): Promise<void> {
  const program = programFile('test/faults/collect-states.ts');
  const child = spawn(process.execPath, [program, JSON.stringify(openedAs(database))], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  await once(child.stdout, 'data');
  while (!(await isDue())) await delay(1);
  await delay(afterMs);
  child.kill('SIGKILL');
  await exited;
}
