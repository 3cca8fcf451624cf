import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import type { NewState } from '../../src/domain/step.ts';
import { openedAs, openOn } from '../store/on_store.ts';
import { Scene } from '../store/scene.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { programFile } from '../support/program.ts';
import { makeStep, newState, smallRef, stateRef } from '../support/steps.ts';
import { reportFigures } from './figures.ts';
import type { Measured, Task, Work } from './memory/measure.ts';

const MIB = 1024 * 1024;
const NAMESPACE = 'default';

/** MiB of states of the two databases. */
const [FEW, MANY] = dose([20, 60], [30, 120]);

/** What may be in use more with the larger database, usually and at most: parts of what it has more. */
const MOST_MORE = { usually: (MANY - FEW) / 10, atMost: (MANY - FEW) / 3 };

type InUse = keyof typeof MOST_MORE;

/** The median, because a disk or a core that is busy with other work delays what frees buffers, and the largest. */
function inUse(grown: readonly number[]): Readonly<Record<InUse, number>> {
  const sorted = grown.map((bytes) => bytes / MIB).sort((a, b) => a - b);
  return { usually: sorted[sorted.length >> 1]!, atMost: sorted.at(-1)! };
}

function shown({ usually, atMost }: Readonly<Record<InUse, number>>): string {
  return `${Math.round(usually)} to ${Math.round(atMost)}`;
}

/** Stores about this many MiB that do not compress: large states, small states, and trajectories of one step. */
async function fill(database: TestDatabase, mib: number): Promise<void> {
  const store = await openOn(database);
  const scene = new Scene(store, NAMESPACE);
  for (let i = 0; i < mib / 10; i += 1) {
    const made = await scene.create();
    for (let first = 0; first < 100; first += 20) {
      const states: NewState[] = [];
      const steps = Array.from({ length: 20 }, (_, at) => {
        const [env, agent] = [newState(randomBytes(100 * 1024)), newState(randomBytes(2000))];
        states.push(env);
        return makeStep(BigInt(first + at), { states: [smallRef(agent, 'agent'), stateRef(env)] });
      });
      await scene.append(made, steps, { states });
    }
    for (let tiny = 0; tiny < 100; tiny += 1) await scene.createWith(['only']);
  }
  await store.close();
}

/** Measures tasks on databases of this many MiB in a process of its own. */
async function measured(works: readonly Work[], mib: number): Promise<Measured[]> {
  // Threads that collect garbage beside each other take more CPU time together than one.
  const gc = ['--expose-gc', '--single-threaded-gc'];
  const args = [...gc, programFile('test/faults/memory/measure.ts'), JSON.stringify(works), NAMESPACE];
  const { stdout } = await promisify(execFile)(process.execPath, [...args, String(mib)]);
  return JSON.parse(stdout) as Measured[];
}

describe.each(ENGINES)('memory, on %s', (engine) => {
  it('V1, V2, V5, V6: exports, imports, backups and verifications of more data have no more in use', async () => {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-memory-'));
    const tasks: readonly Task[] = ['export', 'import', 'verify', ...(engine === 'sqlite' ? ['backup' as const] : [])];
    const grown = new Map<Task, Record<InUse, number>[]>(tasks.map((task) => [task, []]));
    const done = new Map<Task, number[]>(tasks.map((task) => [task, []]));
    await using database = await createMigratedDatabase(engine);
    let filled = 0;
    for (const mib of [FEW, MANY]) {
      await fill(database, mib - filled);
      filled = mib;
      await using copy = await createMigratedDatabase(engine);
      const works = tasks.map((task): Work => {
        const file = path.join(folder, `${task === 'backup' ? 'backup' : 'archive'}-${mib}`);
        return { task, database: openedAs(task === 'import' ? copy : database), file };
      });
      for (const [i, result] of (await measured(works, mib)).entries()) {
        expect(result.grown.length).toBeGreaterThan(5);
        grown.get(tasks[i]!)!.push(inUse(result.grown));
        done.get(tasks[i]!)!.push(result.done);
      }
    }
    await rm(folder, { recursive: true });
    reportFigures(
      `MiB in use usually and at most, with ${FEW} and ${MANY} MiB of data, on ${engine}`,
      Object.fromEntries([...grown].map(([task, sizes]) => [task, sizes.map(shown).join(' and ')])),
    );
    for (const [task, [few, many]] of done) expect(many! / few!, task).toBeGreaterThan((0.9 * MANY) / FEW);
    for (const [task, [few, many]] of grown) {
      for (const which of ['usually', 'atMost'] as const)
        expect(many![which] - few![which], `MiB more in use by ${task}, ${which}`).toBeLessThan(MOST_MORE[which]);
    }
  });
});
