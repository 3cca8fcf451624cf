/** Databases of a version before segments, and what is read of them. */
import { spawn } from 'node:child_process';
import process from 'node:process';
import { isDeepStrictEqual } from 'node:util';
import { expect } from 'vitest';
import type { Trajectory } from '../../../src/domain/trajectory.ts';
import { undoMigrations } from '../../store/earlier_schema.ts';
import { openedAs, openOn } from '../../store/on_store.ts';
import { Scene } from '../../store/scene.ts';
import type { OutsideSql } from '../../store/sql.ts';
import type { TestDatabase } from '../../support/database.ts';
import { programFile } from '../../support/program.ts';
import { makeStep, newState, smallRef, stateRef } from '../../support/steps.ts';

const TREES = 12;

/** Stores trajectories, and reverts the database to the schema before segments. Returns what is read of them. */
export async function makeFormer(database: TestDatabase, sql: OutsideSql, length: number) {
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

type Looked = Awaited<ReturnType<typeof lookAt>>;

/** Expects what was there before, and returns it. The quick comparison takes a tenth of the time of `toEqual`. */
export async function expectUnchanged(scene: Scene, made: readonly Trajectory[], before: Looked): Promise<Looked> {
  const after = await lookAt(scene, made);
  if (!isDeepStrictEqual(after, before)) expect(after).toEqual(before);
  return after;
}

/** Opens the database in a process of its own. */
export function spawnOpen(database: TestDatabase, stderr: 'inherit' | 'pipe' = 'inherit') {
  const program = programFile('test/faults/open-store.ts');
  const args = [program, JSON.stringify(openedAs(database))];
  return spawn(process.execPath, args, { stdio: ['ignore', 'ignore', stderr] });
}
