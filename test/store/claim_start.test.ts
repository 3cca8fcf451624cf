import { expect, it } from 'vitest';
import { wordStep } from '../support/steps.ts';
import { claimed, describeClaims, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';

describeClaims('claims of rollouts that start at a step', (scenes) => {
  const fresh = async () => {
    const scene = scenes();
    return { scene, ...(await scene.place()) };
  };

  it('B1, Q2: the attempt is a branch at the start point, so that a group explores from one state', async () => {
    const { scene, stage, run } = await fresh();
    const source = await scene.create();
    await scene.append(source, [
      wordStep(0n, 'a', { reward: 1 }),
      wordStep(1n, 'b', { reward: 2 }),
      wordStep(2n, 'c', { reward: 4 }),
    ]);
    await scene.queue(stage, 4, { startFrom: { trajectoryId: source.id, stepNumber: 1n } });
    const claims = await scene.claims({ count: 4 });
    expect(claims).toHaveLength(4);
    for (const claim of claims) {
      expect(claim.rollout.startFrom).toEqual({ trajectoryId: source.id, stepNumber: 1n });
      expect(claim.trajectory).toMatchObject({
        nextStepNumber: 2n,
        treeId: source.id,
        parent: { id: source.id, branchPoint: 1n },
        rewardSum: 3,
        runId: run.id,
      });
      expect(await scene.get(claim.trajectory.id)).toEqual(claim.trajectory);
      expect(await scene.words(claim.trajectory)).toEqual(['a', 'b']);
      expect(await scene.rollout(claim.rollout.id)).toEqual(claim.rollout);
    }
    const [one] = claims;
    await scene.append(one!.trajectory, [wordStep(2n, 'x', { reward: 0.5 }), wordStep(3n, 'y')]);
    expect(await scene.words(one!.trajectory)).toEqual(['a', 'b', 'x', 'y']);
    expect(await scene.rollout(one!.rollout.id)).toMatchObject({ turns: 2n, reward: 0.5 });
    expect(await scene.words(source)).toEqual(['a', 'b', 'c']);
    expect(await scene.complete(one!)).toMatchObject({ turns: 2n, reward: 0.5 });
    const [, two] = claims;
    expect(await scene.complete(two!)).toMatchObject({ turns: 0n, reward: undefined });
  });

  it('B1: the parent is the owner of the step, whatever trajectory is named', async () => {
    const { scene, stage } = await fresh();
    const root = await scene.createWith(['a', 'b', 'c']);
    const branch = await scene.branch(root, 1n);
    await scene.append(branch, [wordStep(2n, 'B')]);
    const leaf = await scene.branch(branch, 2n);
    await scene.queue(stage, 1, { startFrom: { trajectoryId: leaf.id, stepNumber: 0n } });
    await scene.queue(stage, 1, { groupNumber: 1n, startFrom: { trajectoryId: leaf.id, stepNumber: 2n } });
    const [first, second] = await scene.claims({ count: 2 });
    expect(first?.trajectory.parent).toMatchObject({ id: root.id, branchPoint: 0n });
    expect(second?.trajectory.parent).toMatchObject({ id: branch.id, branchPoint: 2n });
    expect(await scene.words(first!.trajectory)).toEqual(['a']);
    expect(await scene.words(second!.trajectory)).toEqual(['a', 'b', 'B']);
    for (const claim of [first, second]) expect(await scene.get(claim!.trajectory.id)).toEqual(claim?.trajectory);
  });

  it('Q3: a rollout whose start point was deleted is FAILED, and the claim takes the next one', async () => {
    const { scene, stage, run } = await fresh();
    const [kept, deleted] = [await scene.createWith(['a']), await scene.createWith(['a'])];
    const lost = await scene.queue(stage, 5, { startFrom: { trajectoryId: deleted.id, stepNumber: 0n }, priority: 1 });
    const [good = ''] = await scene.queue(stage, 1, {
      groupNumber: 1n,
      startFrom: { trajectoryId: kept.id, stepNumber: 0n },
    });
    await scene.delete(deleted);
    const claim = await scene.claimOne({ runId: run.id });
    expect(claim.rollout.id).toBe(good);
    expect(await scene.claims({ count: 9 })).toEqual([]);
    for (const id of lost) {
      const { rollout, attempts } = await scene.record(id);
      expect(rollout).toMatchObject({ status: 'FAILED', attempt: 0, trajectoryId: '', turns: 0n });
      expect(rollout.statusMessage).toContain(`step 0 of trajectory ${deleted.id}, was deleted`);
      expect(rollout.endTime).toBeDefined();
      expect(attempts).toEqual([]);
      expect(await scene.history('ROLLOUT', { id })).toMatchObject([{}, { newStatus: 'FAILED', actor: 'anabranch' }]);
    }
    const group = await scene.store.getGroup(scene.namespace, { stageId: stage.id, number: 0n });
    expect(group?.statistics).toMatchObject({ pending: 0n, failed: 5n });
  });

  it('Q3: a start point that is kept only for branches, or whose trajectory was created again shorter, counts as deleted', async () => {
    const { scene, stage } = await fresh();
    const hidden = await scene.createWith(['a', 'b']);
    await scene.branch(hidden, 1n);
    const again = await scene.createWith(['a', 'b']);
    const [first = ''] = await scene.queue(stage, 1, { startFrom: { trajectoryId: hidden.id, stepNumber: 0n } });
    const [second = ''] = await scene.queue(stage, 1, {
      groupNumber: 1n,
      startFrom: { trajectoryId: again.id, stepNumber: 1n },
    });
    await scene.delete(hidden, 'KEEP_SHARED');
    await scene.delete(again);
    await scene.create({ id: again.id });
    const [outcome] = await scene.store.claimRollouts([scene.request({ count: 2 })]);
    expect(claimed(outcome).claims).toEqual([]);
    for (const id of [first, second]) expect((await scene.rollout(id)).status).toBe('FAILED');
  });

  it('B2, Q3: during the deletion of the start point every claim is complete, or its rollout is FAILED', async () => {
    const seen = new Set<string>();
    for (let round = 0; round < 6; round += 1) {
      const { scene, stage } = await fresh();
      const source = await scene.createWith(['a', 'b']);
      const ids = await scene.queue(stage, 3, { startFrom: { trajectoryId: source.id, stepNumber: 1n } });
      const [claims, deleted] = await Promise.all([
        scene.claims({ count: 3 }),
        scene.delete(source).then(
          () => 'done',
          (error: { reason?: string }) => error.reason,
        ),
      ]);
      seen.add(`${claims.length} ${deleted}`);
      for (const claim of claims) expect(await scene.words(claim.trajectory)).toEqual(['a', 'b']);
      if (deleted === 'HAS_BRANCHES') expect(claims).toHaveLength(3);
      else {
        expect(claims).toEqual([]);
        await scene.claims({ count: 3 });
        for (const id of ids) expect((await scene.rollout(id)).status).toBe('FAILED');
      }
    }
    expect([...seen].every((each) => ['3 HAS_BRANCHES', '0 done'].includes(each))).toBe(true);
  });

  it('a start point without a trajectory, on a deleted one, or beyond the end is refused when the rollout is created', async () => {
    const { scene, stage } = await fresh();
    const source = await scene.createWith(['a']);
    const make = (trajectoryId: string, stepNumber: bigint) =>
      scene.makeRollouts(stage, [{ number: 0n }, { number: 1n, startFrom: { trajectoryId, stepNumber } }]);
    expect((await refusalOf(make(stage.id, 0n))).reason).toBe('TRAJECTORY_NOT_FOUND');
    expect((await refusalOf(make(source.id, 1n))).reason).toBe('BRANCH_POINT_BEYOND_END');
    await scene.delete(source);
    expect((await refusalOf(make(source.id, 0n))).reason).toBe('TRAJECTORY_NOT_FOUND');
    expect(await scene.rollouts({ stageId: stage.id })).toEqual([]);
    expect(await scene.store.getGroup(scene.namespace, { stageId: stage.id, number: 0n })).toBeUndefined();
  });

  it('Q1: a requeued rollout starts at its start point again', async () => {
    const { scene, stage } = await fresh();
    const source = await scene.createWith(['a', 'b']);
    await scene.queue(stage, 1, { startFrom: { trajectoryId: source.id, stepNumber: 1n } });
    const first = await scene.claimOne();
    await scene.append(first.trajectory, [wordStep(2n, 'x')]);
    await scene.release(tokenOf(first));
    const second = await scene.claimOne();
    expect(await scene.words(first.trajectory)).toEqual(['a', 'b', 'x']);
    expect(await scene.words(second.trajectory)).toEqual(['a', 'b']);
    expect(second.trajectory.name).toBe('rollout 0/0 attempt 2');
  });
});
