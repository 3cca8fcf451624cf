import { expect, it } from 'vitest';
import type { TrajectoryFilter, TrajectoryPlace, TrajectorySort } from '../../src/store/contract/trajectory.ts';
import { makeStep, sha256, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import type { Scene } from './scene.ts';
import { sqliteTextsOf, textsOf } from './statement_count.ts';

/** Sums of rewards in order of creation. The sum of both infinities is NaN. */
const REWARDS: readonly (readonly number[])[] = [
  [2],
  [],
  [Infinity, -Infinity],
  [-1.5],
  [2],
  [-Infinity],
  [Infinity],
  [NaN, 1],
  [Infinity, -Infinity],
];

describeStore('the order of trajectories', (on) => {
  async function createAll(scene: Scene): Promise<string[]> {
    const ids: string[] = [];
    for (const rewards of REWARDS) {
      const made = await scene.create();
      const steps = rewards.map((reward, i) => makeStep(BigInt(i), { reward }));
      if (steps.length > 0) await scene.append(made, steps);
      ids.push(made.id);
    }
    return ids;
  }

  /** Returns the positions in `ids` of the trajectories in an order, read in pages. */
  async function order(scene: Scene, ids: string[], filter: TrajectoryFilter, by: TrajectorySort, limit: number) {
    const places: TrajectoryPlace[] = [];
    for (;;) {
      const page = await scene.store.orderTrajectories(scene.namespace, filter, by, { limit, after: places.at(-1) });
      places.push(...page);
      if (page.length < limit) break;
    }
    const found = await scene.store.findTrajectories(scene.namespace, { keys: places.map(({ key }) => key) });
    const idOf = new Map(found.map(({ trajectory }) => [trajectory.ref.key, trajectory.id]));
    return places.map(({ key }) => ids.indexOf(idOf.get(key)!));
  }

  it.each([1, 2, 100])('RD6: by creation or by reward sum, NaN last, in pages of %i', async (limit) => {
    const scene = on.scene();
    const ids = await createAll(scene);
    const all = ids.map((_, i) => i);
    const read = (by: TrajectorySort['by'], descending: boolean, filter: TrajectoryFilter = {}) =>
      order(scene, ids, filter, { by, descending }, limit);
    expect(await read('CREATION', false)).toEqual(all);
    expect(await read('CREATION', true)).toEqual(all.toReversed());
    expect(await read('REWARD_SUM', false)).toEqual([5, 3, 1, 7, 0, 4, 6, 2, 8]);
    expect(await read('REWARD_SUM', true)).toEqual([6, 4, 0, 7, 1, 3, 5, 8, 2]);
    expect(await read('REWARD_SUM', false, { minRewardSum: 1 })).toEqual([7, 0, 4, 6]);
    expect(await read('REWARD_SUM', true, { maxRewardSum: 0 })).toEqual([1, 3, 5]);
    expect(await read('REWARD_SUM', true, { minRewardSum: -Infinity, maxRewardSum: Infinity })).not.toContain(2);
  });

  it('RD6: filters by ids, length and the newest key, combined with the others', async () => {
    const scene = on.scene();
    const made = [];
    for (const count of [0, 1, 2, 3]) {
      made.push(await scene.createWith(Array.from({ length: count }, (_, i) => `${i}`)));
    }
    const branch = await scene.branch(made[3]!, 2n);
    await scene.delete(made[1]!);
    const ids = [...made, branch].map(({ id }) => id);
    const read = (filter: TrajectoryFilter) => order(scene, ids, filter, { by: 'CREATION', descending: false }, 100);
    expect(await read({})).toEqual([0, 2, 3, 4]);
    expect(await read({ minLength: 2n, maxLength: 3n })).toEqual([2, 3, 4]);
    expect(await read({ maxLength: 0n })).toEqual([0]);
    expect(await read({ ids: [ids[4]!, ids[1]!, ids[2]!, crypto.randomUUID()] })).toEqual([2, 4]);
    expect(await read({ newest: made[3]!.ref.key })).toEqual([0, 2, 3]);
    expect(await read({ rootsOnly: true, minLength: 1n })).toEqual([2, 3]);
    expect(await read({ statuses: [] })).toEqual([]);
    expect(await order(on.scene(), ids, { ids }, { by: 'CREATION', descending: false }, 9)).toEqual([]);
  });

  it('finds trajectories by id and by key, with the bytes of their steps', async () => {
    const scene = on.scene();
    const root = await scene.create();
    await scene.append(root, [wordStep(0n, 'x'.repeat(1000)), wordStep(1n, 'y'.repeat(500))]);
    const branch = await scene.branch(root, 0n);
    await scene.append(branch, [wordStep(1n, 'z'.repeat(200))]);
    const empty = await scene.branch(root, 1n);
    const gone = await scene.create();
    await scene.delete(gone);
    const ids = [root.id, branch.id, empty.id, gone.id];
    const found = await scene.store.findTrajectories(scene.namespace, { ids });
    const sizeOf = new Map(found.map(({ trajectory, stepBytes, ownBytes }) => [trajectory.id, [stepBytes, ownBytes]]));
    expect([...sizeOf.keys()].toSorted()).toEqual(ids.slice(0, 3).toSorted());
    const [[all, own] = [0, 0], [, ofBranch] = [0, 0], ofEmpty] = ids.map((id) => sizeOf.get(id));
    expect(own).toBe(all);
    expect(all).toBeGreaterThan(1500);
    expect(ofBranch).toBeGreaterThan(200);
    expect(ofBranch).toBeLessThan(400);
    expect(ofEmpty).toEqual([all, 0]);
    const keys = found.map(({ trajectory }) => trajectory.ref.key);
    const byKey = await scene.store.findTrajectories(scene.namespace, { keys });
    expect(new Set(byKey)).toEqual(new Set(found));
    expect(await scene.store.findTrajectories(scene.namespace, { ids: [] })).toEqual([]);
    expect(await scene.store.findTrajectories(scene.namespace, { keys: [] })).toEqual([]);
    expect(await scene.store.findTrajectories(on.scene().namespace, { keys })).toEqual([]);
  });

  it('lists of any length have few texts of statements, because engines cache a limited number of them', async () => {
    const { namespace } = on.scene();
    const order = { by: 'CREATION', descending: false } as const;
    const read = async () => {
      for (let count = 1; count <= 40; count += 1) {
        const ids = Array.from({ length: count }, () => crypto.randomUUID());
        const digests = ids.map((id) => sha256(id));
        await on.store.findTrajectories(namespace, { ids });
        await on.store.orderTrajectories(namespace, { ids }, order, { limit: 1, after: undefined });
        await on.store.locateStates(namespace, digests);
        await on.store.readWholeStates(namespace, digests);
      }
    };
    const texts = await (on.engine === 'postgres' ? textsOf(read) : sqliteTextsOf(read));
    expect(texts.length).toBeGreaterThanOrEqual(160);
    expect(new Set(texts).size).toBeLessThan(4 * 8);
  });
});
