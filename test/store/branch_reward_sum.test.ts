import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene, tokenOf } from './rollout_scene.ts';
import { Scene } from './scene.ts';

const { POSITIVE_INFINITY, NEGATIVE_INFINITY } = Number;

/** Rewards of a prefix, rewards of the branch, and the sum over the branch's own. */
const CASES: readonly (readonly [
  prefix: readonly (number | undefined)[],
  own: readonly (number | undefined)[],
  sum: number | undefined,
])[] = [
  [[1e16], [1], 1],
  [[1e16], [1, undefined, 1, Number.NaN, 1], 3],
  [[0.1, 0.2], [0.3, 0.1], 0.4],
  [[POSITIVE_INFINITY], [2, -0.5], 1.5],
  [[NEGATIVE_INFINITY, POSITIVE_INFINITY], [2], 2],
  [[1e308, 1e308], [7], 7],
  [[7], [1e308, 1e308, -1e308], POSITIVE_INFINITY],
  [[7], [-1e308, -1e308, 1], NEGATIVE_INFINITY],
  [[7], [1e308, -1e308, 1], 1],
  [[7], [1e16, 1, 1], 1e16],
  [[7], [NEGATIVE_INFINITY, 3], NEGATIVE_INFINITY],
  [[7], [NEGATIVE_INFINITY, POSITIVE_INFINITY, 3], Number.NaN],
  [[7], [-0], 0],
  [[7], [Number.NaN, undefined], undefined],
  [[7], [], undefined],
];

async function appendRewards(scene: Scene, trajectory: Trajectory, rewards: readonly (number | undefined)[]) {
  const { nextStepNumber } = trajectory;
  const steps = rewards.map((reward, i) => wordStep(nextStepNumber + BigInt(i), `w${i}`, { reward }));
  if (steps.length > 0) await scene.append(trajectory, steps);
}

/** A root with the first rewards, and a branch at its last step with the others. */
async function branched(scene: Scene, prefix: readonly (number | undefined)[], own: readonly (number | undefined)[]) {
  const root = await scene.create();
  await appendRewards(scene, root, prefix);
  const branch = await scene.branch(root, BigInt(prefix.length - 1));
  await appendRewards(scene, branch, own);
  return { root: await scene.get(root.id), branch: await scene.get(branch.id) };
}

describeStore('sums of own rewards', (on) => {
  it.each(CASES)('M3: after a prefix of %s, a branch with %s has the sum %s', async (prefix, own, sum) => {
    const { root, branch } = await branched(new Scene(on.store), prefix, own);
    expect(branch.branchRewardSum).toBe(sum);
    expect(root.branchRewardSum).toBe(root.rewardSum);
  });

  it.each(CASES)(
    'M3: a rollout that starts after a prefix of %s and earns %s has the reward %s, while live and after its end',
    async (prefix, own, sum) => {
      const scene = new RolloutScene(on.store);
      const { stage } = await scene.place();
      const source = await scene.create();
      await appendRewards(scene, source, prefix);
      const stepNumber = BigInt(prefix.length - 1);
      await scene.queue(stage, 1, { startFrom: { trajectoryId: source.id, stepNumber } });
      const claim = await scene.claimOne();
      expect(claim.trajectory.branchRewardSum).toBeUndefined();
      await scene.start(claim);
      await appendRewards(scene, claim.trajectory, own);
      const live = await scene.record(claim.rollout.id);
      expect([live.rollout.reward, live.attempts[0]?.reward]).toEqual([sum, sum]);
      expect((await scene.complete(claim)).reward).toEqual(sum);
      expect((await scene.record(claim.rollout.id)).attempts[0]?.reward).toEqual(sum);
    },
  );

  it('M3: sums stay correct through single appends, an open, the end of an attempt, and the deletion of the source', async () => {
    const scene = new RolloutScene(on.store);
    const { stage } = await scene.place();
    const root = await scene.create();
    await appendRewards(scene, root, [1e16, 1e16, 1e16]);
    await scene.queue(stage, 1, { startFrom: { trajectoryId: root.id, stepNumber: 1n } });
    const claim = await scene.claimOne();
    const { trajectory } = claim;
    for (const [i, reward] of [1, 0.5, 0.25].entries()) {
      await scene.append(trajectory, [wordStep(2n + BigInt(i), 'w', { reward })]);
      expect((await scene.get(trajectory.id)).branchRewardSum).toBe([1, 1.5, 1.75][i]);
    }
    const below = await scene.branch(trajectory, 3n);
    await scene.open(below);
    await scene.release(tokenOf(claim));
    await scene.delete(root, 'KEEP_SHARED');
    expect(await scene.get(trajectory.id)).toMatchObject({ status: 'FAILED', branchRewardSum: 1.75 });
    expect(await scene.get(below.id)).toMatchObject({ rewardSum: 2e16 + 1 + 0.5, branchRewardSum: undefined });
    expect(await scene.store.listTree(scene.namespace, root.ref.tree, { limit: 9, after: undefined })).toMatchObject([
      { id: root.id, nextStepNumber: 2n, rewardSum: 2e16, branchRewardSum: undefined },
      { id: trajectory.id },
      { id: below.id },
    ]);
  });
});
