import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { wordStep } from '../support/steps.ts';
import { openOn } from './on_store.ts';
import { Scene } from './scene.ts';
import { type OutsideSql, outsideSql } from './sql.ts';

const { NaN: NAN, POSITIVE_INFINITY: INFINITE, MAX_VALUE } = Number;
const ROOT = [1, undefined, NAN, -3, 7, -0, 0.5, 2, -INFINITE, INFINITE, 4];
const BRANCH = [undefined, NAN, MAX_VALUE, -MAX_VALUE];

type Bounds = readonly (readonly [first: number, least: number | null, most: number | null])[];

/** Bounds of the rewards in each stored segment of a trajectory, from the rewards themselves. */
function boundsOf(first: number, sizes: readonly number[], rewards: readonly (number | undefined)[]): Bounds {
  let at = 0;
  return sizes.map((size) => {
    const some = rewards.slice(at, at + size).flatMap((reward = NAN) => (Number.isNaN(reward) ? [] : [reward]));
    const begin = first + at;
    at += size;
    return some.length === 0 ? [begin, null, null] : [begin, Math.min(...some) + 0, Math.max(...some) + 0];
  });
}

it.each(ENGINES)(
  'RD4, W11: each stored segment and each trajectory has the bounds of its rewards, after appends and trims, on %s',
  async (engine) => {
    await using database = await createMigratedDatabase(engine);
    const { scene, root, branch } = await written(database);
    const sql = await outsideSql(database);
    const stored = (of: Trajectory) => storedBounds(sql, of);
    // A group of one step, on Postgres by a cached head from the second on, and groups of several.
    expect(await stored(root)).toEqual({
      segments: boundsOf(0, [4, 1, 1, 1, 4], ROOT),
      own: [-INFINITE, INFINITE],
    });
    expect(await stored(branch)).toEqual({ segments: boundsOf(3, [2, 1, 1], BRANCH), own: [-MAX_VALUE, MAX_VALUE] });
    const empty = await scene.create();
    expect(await stored(empty)).toEqual({ segments: [], own: [null, null] });

    const before = await stored(branch);
    await scene.delete(root, 'KEEP_SHARED');
    expect(await stored(root)).toEqual({ segments: boundsOf(0, [3], ROOT), own: [-INFINITE, INFINITE] });
    expect(await stored(branch)).toEqual(before);
    await scene.store.close();
    await sql.close();
  },
);

async function written(database: TestDatabase) {
  const scene = new Scene(await openOn(database));
  const append = (to: Trajectory, first: number, rewards: readonly (number | undefined)[]) =>
    scene.append(
      to,
      rewards.map((reward, i) => wordStep(BigInt(first + i), `${i}`, { reward })),
    );
  const root = await scene.create();
  await append(root, 0, ROOT.slice(0, 4));
  for (const [i, reward] of ROOT.slice(4, 7).entries()) await append(root, 4 + i, [reward]);
  await append(root, 7, ROOT.slice(7));
  const branch = await scene.branch(root, 2n);
  await append(branch, 3, BRANCH.slice(0, 2));
  for (const [i, reward] of BRANCH.slice(2).entries()) await append(branch, 5 + i, [reward]);
  return { scene, root, branch };
}

async function storedBounds(sql: OutsideSql, { ref }: Trajectory) {
  const number = (value: unknown) => (value === null ? null : Number(value) + 0);
  const segments = await sql.rows(`select first_step_number, min_reward, max_reward from segments
    where tree = ${ref.tree} and trajectory = ${ref.key} order by first_step_number`);
  const [own] = await sql.rows(
    `select min_reward, max_reward from trajectories where tree = ${ref.tree} and key = ${ref.key}`,
  );
  return {
    segments: segments.map((row) => [Number(row.first_step_number), number(row.min_reward), number(row.max_reward)]),
    own: [number(own?.min_reward), number(own?.max_reward)],
  };
}
