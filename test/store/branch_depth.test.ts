import { beforeAll, describe, expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { dose } from '../support/dose.ts';
import { wordStep } from '../support/steps.ts';
import { makeDeepTree, turnsDuring } from './deep_tree.ts';
import { describeStore } from './on_store.ts';
import { newRollout, RolloutScene } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { statementsOf } from './statement_count.ts';

const DEEPEST = LIMITS.branchDepth;
/** Branches in a very long chain. The large dose exceeds the limit. */
const DEPTH = dose(3_400, 12_000);

describeStore('the depth of branches', (on) => {
  const scene = () => new RolloutScene(on.store);
  const depthOf = async ({ id }: { readonly id: string }) => {
    const [row] = await on.sql.rows(`select depth from trajectories where id = '${id}'`);
    return Number(row?.depth);
  };
  const depthsOf = async (trajectories: readonly { readonly id: string }[]) => {
    const depths: number[] = [];
    for (const each of trajectories) depths.push(await depthOf(each));
    return depths;
  };
  /** Sets the stored depth, without creating its ancestors. */
  const setDepth = ({ id }: { readonly id: string }, depth: number) =>
    on.sql.rows(`update trajectories set depth = ${depth} where id = '${id}'`);

  it('B1: a root has depth 0; a branch is one deeper than the owner of its branch point, whichever trajectory is named', async () => {
    const here = scene();
    const root = await here.createWith(['a', 'b']);
    const child = await here.branch(root, 1n);
    await here.append(child, [wordStep(2n, 'c')]);
    const grandchild = await here.branch(child, 2n);
    const ofRoot = await here.branch(grandchild, 0n);
    expect(await depthsOf([root, child, grandchild, ofRoot])).toEqual([0, 1, 2, 1]);

    const run = await here.makeRunWith(['a']);
    const { mainTrajectory } = await here.branchOff(run, 0n);
    expect(await depthsOf([run.mainTrajectory!, mainTrajectory!])).toEqual([0, 1]);

    const { stage } = await here.place();
    await here.queue(stage, 1, { startFrom: { trajectoryId: grandchild.id, stepNumber: 2n } });
    await here.queue(stage, 1, { groupNumber: 1n });
    const claims = await here.claims({ count: 2 });
    expect(await depthsOf(claims.map(({ trajectory }) => trajectory))).toEqual([2, 0]);
  });

  it(`B1: BranchTrajectory creates a branch of depth ${DEEPEST}, and refuses to branch that one`, async () => {
    const here = scene();
    const root = await here.createWith(['a', 'b']);
    await setDepth(root, DEEPEST - 1);
    const deepest = await here.branch(root, 1n);
    expect(await depthOf(deepest)).toBe(DEEPEST);
    await here.append(deepest, [wordStep(2n, 'c')]);
    const error = await refusalOf(here.branch(deepest, 2n));
    expect(error).toMatchObject({
      reason: 'BRANCH_TOO_DEEP',
      metadata: { trajectory_id: deepest.id, depth: `${DEEPEST}` },
    });
    expect(error.message).toContain(deepest.id);
    expect(error.message).toContain('create a new root trajectory');
    // The owner of an inherited step is less deep.
    expect(await depthOf(await here.branch(deepest, 1n))).toBe(DEEPEST);
  });

  it(`B1: BranchRun creates a branch of depth ${DEEPEST}, and refuses to branch that one`, async () => {
    const here = scene();
    const run = await here.makeRunWith(['a']);
    await setDepth(run.mainTrajectory!, DEEPEST - 1);
    const { mainTrajectory, run: branch } = await here.branchOff(run, 0n);
    expect(await depthOf(mainTrajectory!)).toBe(DEEPEST);
    await here.append(await here.get(mainTrajectory!.id), [wordStep(1n, 'b')]);
    const error = await refusalOf(here.branchOff(branch, 1n));
    expect(error).toMatchObject({ reason: 'BRANCH_TOO_DEEP', metadata: { trajectory_id: mainTrajectory!.id } });
    expect((await here.runs()).length, 'nothing of the run is made').toBe(2);
  });

  it('B1, Q3: a claim fails a rollout whose attempt would be too deep, with the reason, and takes the next one', async () => {
    const here = scene();
    const { stage } = await here.place();
    const [fits, tooDeep] = [await here.createWith(['a']), await here.createWith(['a'])];
    await setDepth(fits, DEEPEST - 1);
    await setDepth(tooDeep, DEEPEST);
    const [lost = ''] = await here.queue(stage, 1, {
      startFrom: { trajectoryId: tooDeep.id, stepNumber: 0n },
      priority: 1,
    });
    const [good = ''] = await here.queue(stage, 1, {
      groupNumber: 1n,
      startFrom: { trajectoryId: fits.id, stepNumber: 0n },
    });
    const claim = await here.claimOne();
    expect(claim.rollout.id).toBe(good);
    expect(await depthOf(claim.trajectory)).toBe(DEEPEST);
    const { rollout, attempts } = await here.record(lost);
    expect(rollout).toMatchObject({ status: 'FAILED', attempt: 0, trajectoryId: '' });
    expect(rollout.statusMessage).toContain(
      `BRANCH_TOO_DEEP: its start point is step 0 of trajectory ${tooDeep.id}. Trajectory ${tooDeep.id}, which owns the branch point, has depth ${DEEPEST}`,
    );
    expect(attempts).toEqual([]);
    expect(await here.history('ROLLOUT', { id: lost })).toMatchObject([
      {},
      { newStatus: 'FAILED', actor: 'anabranch' },
    ]);
    const { key: _, ...claiming } = here.request();
    const row = newRollout({ number: 1n, startFrom: { trajectoryId: tooDeep.id, stepNumber: 0n } });
    const creation = here.store.createRollouts(here.caller, stage.id, [row], undefined, claiming);
    expect(await refusalOf(creation), 'claimed by its creation').toMatchObject({ reason: 'BRANCH_TOO_DEEP' });
  });

  describe('a very long chain of branches', () => {
    const depth = DEPTH;
    let here: RolloutScene;
    let root: Trajectory;
    let leaf: Trajectory;
    let idOf: (depth: number) => string;
    beforeAll(async () => {
      here = scene();
      root = await here.createWith(['a']);
      ({ idOf } = await makeDeepTree(on.engine, on.sql, root, depth));
      leaf = await here.get(idOf(depth));
    });

    it('B1: a lineage is read a thousand ancestors per statement, no further than requested, with other work in between', async () => {
      const read = (from?: bigint) => here.store.getLineage(here.namespace, leaf.ref, from);
      const chain = await read();
      expect(chain.map(({ branchPoint }) => branchPoint)).toEqual([
        undefined,
        ...Array.from({ length: depth }, (_, i) => BigInt(i)),
      ]);
      expect(chain[0]?.key).toBe(root.ref.key);
      expect(await turnsDuring(read)).toBeGreaterThanOrEqual(Math.floor(depth / 1000));
      expect(await statementsOf(on.engine, read)).toBe(Math.ceil((depth + 1) / 1000));
      const near = await read(BigInt(depth - 2));
      expect(near).toEqual(chain.slice(-3));
      expect(await statementsOf(on.engine, () => read(BigInt(depth - 2)))).toBe(1);
      expect(await read(2_500n)).toEqual(chain.slice(2_500));
      const owners = await here.store.getOwners(
        here.namespace,
        leaf.ref.tree,
        near.map(({ key }) => key),
      );
      expect([...owners.values()].map(({ id }) => id).sort()).toEqual(near.map(({ id }) => id).sort());
    });

    it('B1: a step of a distant ancestor can be a branch point, at any depth', async () => {
      expect(await here.branch(leaf, 5n)).toMatchObject({ parent: { id: idOf(5), branchPoint: 5n } });
      await setDepth({ id: idOf(3_000) }, DEEPEST);
      expect((await refusalOf(here.branch(leaf, 3_000n))).metadata).toEqual({
        trajectory_id: idOf(3_000),
        depth: `${DEEPEST}`,
      });
    });
  });
});
