import { spawn } from 'node:child_process';
import { once } from 'node:events';
import process from 'node:process';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { openedAs, openOn } from '../store/on_store.ts';
import { readWhole, Scene } from '../store/scene.ts';
import { countRows, outsideSql } from '../store/sql.ts';
import { storedStates } from '../store/state_chains.ts';
import { expectVerified } from '../store/verified.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { programFile } from '../support/program.ts';
import type { RetentionTask } from './apply-retention.ts';
import { reportFigures } from './figures.ts';
import { seededRandom } from './random.ts';
import { expectKept, isRemoval, keptStates, makeTrajectories, partsOf, STATES, WHOLE } from './retained.ts';

const KILLS = dose(2, 12);
/** Each is a part of the retention at least. A process removes at most six before it is killed. */
const TRAJECTORIES = KILLS * 8;
describe.each(ENGINES)('kill -9 of retention on %s', (engine) => {
  it('S13, S14, D5: no kill loses a kept state, and applied again retention leaves nothing over', async () => {
    const random = seededRandom();
    await using database = await createMigratedDatabase(engine);
    const sql = await outsideSql(database);
    const store = await openOn(database);
    const { namespace } = new Scene(store);
    const made = await makeTrajectories(new Scene(store, namespace), TRAJECTORIES);
    await store.close();
    let left = TRAJECTORIES + made.filter(({ isSealed }) => isSealed).length;
    for (let kill = 0; kill < KILLS; kill += 1) {
      const parts = random.between(1, 4);
      const policies = kill % 2 === 0 ? [STATES, WHOLE] : [WHOLE, STATES];
      await killRetention(database, { namespace, policies, parts }, random.between(0, 60));
      const opened = await openOn(database);
      const scene = new Scene(opened, namespace);
      await expectVerified(opened);
      for (const each of made) await expectKept(scene, each);
      const now = (await partsOf(scene, false)).filter(isRemoval).length;
      expect(now, 'what was removed stays removed').toBeLessThanOrEqual(left - parts);
      expect(now, 'each process is killed before the end').toBeGreaterThan(0);
      left = now;
      await opened.close();
    }
    const last = await openOn(database);
    const scene = new Scene(last, namespace);
    expect((await partsOf(scene, true)).filter(isRemoval).length).toBe(left);
    expect((await partsOf(scene, true)).filter(isRemoval)).toEqual([]);
    // As maintenance does: of a deletion that was killed, the rest is purged.
    while (await last.purgeDeleted(500));
    const kept = keptStates(made);
    const stored = async () => [...(await storedStates(sql, namespace)).keys()].sort();
    // A call deletes nothing while connections of killed processes last, and bases go after their dependents.
    for (let i = 0; i < 100 && (await stored()).length > kept.length; i += 1) await last.collectStates(24, 500);
    await expectVerified(last);
    expect(await stored()).toEqual(kept.map(({ digest }) => digest).sort());
    for (const { digest, data } of kept) expect(Buffer.compare(await readWhole(last, namespace, digest), data)).toBe(0);
    expect(await countRows(sql, namespace)).toMatchObject({
      trajectories: made.filter(({ isSealed }) => !isSealed).length,
      state_refs: kept.length,
    });
    for (const each of made) await expectKept(scene, each);
    reportFigures(`kill -9 of retention on ${engine}`, {
      kills: KILLS,
      trajectories: TRAJECTORIES,
      'kept states read back': kept.length,
      'states left over': 0,
      lost: 0,
    });
    await last.close();
    await sql.close();
  });
});

/** Kills the process some time after it has removed the parts of the task. It removes at most two more. */
async function killRetention(database: TestDatabase, task: RetentionTask, afterMs: number): Promise<void> {
  const { parts } = task;
  const text = JSON.stringify({ ...task, parts: parts + 2 }, (_, value: unknown) =>
    typeof value === 'bigint' ? `${value}` : value,
  );
  const program = programFile('test/faults/apply-retention.ts');
  const child = spawn(process.execPath, [program, JSON.stringify(openedAs(database)), text], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  let removed = 0;
  for await (const _ of createInterface({ input: child.stdout })) if (++removed === parts) break;
  expect(removed).toBe(parts);
  await delay(afterMs);
  child.kill('SIGKILL');
  const [, signal] = (await exited) as [number | null, string | null];
  expect(signal).toBe('SIGKILL');
}
