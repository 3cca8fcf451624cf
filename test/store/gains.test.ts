import fc from 'fast-check';
import { expect, it } from 'vitest';
import { ownBegin, type Trajectory } from '../../src/domain/trajectory.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { Scene } from './scene.ts';

const REWARDS = [undefined, 0, 1, -2, 0.5, 3, Number.NaN] as const;
const PAGE = { limit: 100, after: undefined };

/** A branch of one of the earlier trajectories, at one of its steps, with rewards of its own. */
const BRANCH = fc.record({
  of: fc.nat(20),
  at: fc.nat(20),
  rewards: fc.array(fc.constantFrom(...REWARDS), { maxLength: 6 }),
});

describeStore('gains of branches', (on) => {
  it('RD8: are the differences of mean rewards of the steps that each has in common with its parent', async () => {
    const tree = fc.tuple(fc.array(fc.constantFrom(...REWARDS), { minLength: 1, maxLength: 9 }), fc.array(BRANCH));
    await fc.assert(
      fc.asyncProperty(tree, async ([rewards, branches]) => {
        const scene = new Scene(on.store);
        const all = [{ row: await scene.create(), own: new Map<bigint, number>() }];
        const write = async (row: Trajectory, own: Map<bigint, number>, given: readonly (number | undefined)[]) => {
          const steps = given.map((reward, i) => wordStep(ownBegin(row) + BigInt(i), 'w', { reward }));
          for (const { stepNumber, reward = 0 } of steps) own.set(stepNumber, Number.isNaN(reward) ? 0 : reward);
          if (steps.length > 0) await scene.append(row, steps);
        };
        await write(all[0]!.row, all[0]!.own, rewards);
        for (const { of, at, rewards: given } of branches) {
          const source = await scene.get(all[of % all.length]!.row.id);
          const row = await scene.branch(source, BigInt(at) % source.nextStepNumber);
          const own = new Map<bigint, number>();
          await write(row, own, given);
          all.push({ row, own });
        }
        const keys = all.map(({ row }) => row.ref.key);
        const gains = await on.store.readGains(scene.namespace, all[0]!.row.ref.tree, keys);
        for (const { row, own } of all) {
          const parent = all.find((other) => other.row.ref.key === row.parent?.key);
          const common = [...own.keys()].filter((number) => parent?.own.has(number));
          const difference = common.reduce((sum, number) => sum + own.get(number)! - parent!.own.get(number)!, 0);
          const found = gains.get(row.ref.key);
          expect(found?.gainSteps ?? 0n).toBe(BigInt(common.length));
          if (found !== undefined) expect(found.gain).toBeCloseTo(difference / common.length, 12);
        }
      }),
      { numRuns: 8 },
    );
  });

  it('RD8: equal rewards have a gain of exactly 0, in rows of many steps', async () => {
    const scene = new Scene(on.store);
    const root = await scene.create();
    const steps = (from: number, to: number) =>
      Array.from({ length: to - from }, (_, i) => wordStep(BigInt(from + i), 'w', { reward: 0.1 * ((from + i) % 7) }));
    await scene.append(root, steps(0, 300));
    await scene.append(root, steps(300, 900));
    const branch = await scene.branch(root, 100n);
    await scene.append(branch, steps(101, 700));
    const gains = await on.store.readGains(scene.namespace, root.ref.tree, [branch.ref.key]);
    expect(gains.get(branch.ref.key)).toEqual({ gain: 0, gainSteps: 599n });
  });

  it('RD8, B2: of a deleted parent, its kept steps count; deleted branches and other namespaces have none', async () => {
    const scene = new Scene(on.store);
    const root = await scene.create();
    await scene.append(
      root,
      [0, 1, 2, 3].map((i) => wordStep(BigInt(i), 'w', { reward: i })),
    );
    const branch = await scene.branch(root, 1n);
    await scene.append(
      branch,
      [2, 3].map((i) => wordStep(BigInt(i), 'w', { reward: 9 })),
    );
    const last = await scene.branch(root, 3n);
    await scene.delete(root, 'KEEP_SHARED');
    const { tree } = root.ref;
    const keys = [root, branch, last].map(({ ref }) => ref.key);
    const gains = await on.store.readGains(scene.namespace, tree, keys);
    expect([...gains]).toEqual([[branch.ref.key, { gain: 6.5, gainSteps: 2n }]]);
    expect(await on.store.readGains('other', tree, keys)).toEqual(new Map());
    expect(await on.store.listTree(scene.namespace, tree, PAGE)).toHaveLength(3);
  });
});
