import { expect, it } from 'vitest';
import type { ListRange } from '../../src/service/trajectory/comparison.ts';
import { refusalOf } from '../store/scene.ts';
import { type AppScene, describeApp, state, step } from './on_app.ts';

describeApp('CompareTrajectories', (on) => {
  it('RD5: returns the number of shared steps, where two branches first differ, and their rewards', async () => {
    const scene = on.scene();
    const main = await scene.create();
    await scene.write(
      main,
      [0n, 1n, 2n, 3n].map((n) => step(n, `s${n}`, { reward: 1 })),
    );
    const branch = await scene.branch(main, 1n);
    await scene.write(branch, [step(2n, 's2', { reward: 1 }), step(3n, 'other', { reward: -2 }), step(4n, 'more')]);
    expect(await compare(scene, main, branch, { startStepNumber: 1n, endStepNumber: 9n })).toMatchObject({
      sharedSteps: 2n,
      firstDifference: {
        stepNumber: 3n,
        field: 'actions[0].content.text',
        valueJson: '"s3"',
        otherValueJson: '"other"',
      },
      rewardSum: 4,
      otherRewardSum: 1,
      rewardDifference: -3,
      rewards: [
        { stepNumber: 1n, reward: 1, otherReward: 1, difference: 0 },
        { stepNumber: 2n, reward: 1, otherReward: 1, difference: 0 },
        { stepNumber: 3n, reward: 1, otherReward: -2, difference: -3 },
        { stepNumber: 4n },
      ],
      nextStepNumber: 4n,
      otherNextStepNumber: 5n,
    });
  });

  it.each([1e16, Number.POSITIVE_INFINITY, Number.NaN])(
    'RD5: shared rewards, such as %d, do not hide the difference between two branches',
    async (reward) => {
      const scene = on.scene();
      const main = await scene.create();
      await scene.write(main, [step(0n, 's0', { reward }), step(1n, 's1', { reward })]);
      const [one, other] = [await scene.branch(main, 1n), await scene.branch(main, 1n)];
      await scene.write(one, [step(2n, 'a', { reward: 1 }), step(3n, 'b', { reward: 1 })]);
      await scene.write(other, [step(2n, 'a', { reward: 0.5 })]);
      expect(await compare(scene, one, other)).toMatchObject({ sharedSteps: 2n, rewardDifference: -1.5 });
      expect(await compare(scene, main, other)).toMatchObject({ sharedSteps: 2n, rewardDifference: 0.5 });
      expect(await compare(scene, one, one)).toMatchObject({ sharedSteps: 4n, rewardDifference: 0 });
    },
  );

  it('RD5: unrelated trajectories share no steps, but may have a long equal beginning', async () => {
    const scene = on.scene();
    const one = await scene.createWith(['a', 'b', 'c']);
    const other = await scene.createWith(['a', 'b']);
    expect(await compare(scene, one, other)).toMatchObject({
      sharedSteps: 0n,
      firstDifference: { stepNumber: 2n, field: '', valueJson: '', otherValueJson: '' },
      rewards: [],
    });
    const twin = await scene.createWith(['a', 'b']);
    expect((await compare(scene, other, twin)).firstDifference).toBeUndefined();
    expect((await compare(scene, one, one)).firstDifference).toBeUndefined();
    expect((await compare(scene, one, one)).sharedSteps).toBe(3n);
  });

  it('RD5: info, metrics and states make no difference, over thousands of steps', async () => {
    const scene = on.scene();
    const [one, other] = [await scene.create(), await scene.create()];
    const words = (mark: string, last: string) =>
      Array.from({ length: 2100 }, (_, i) =>
        step(BigInt(i), i === 2050 ? last : 'same', {
          infoJson: `"${mark}"`,
          metrics: new Map([['k', i]]),
          states: i % 1000 === 0 ? [state(mark)] : [],
        }),
      );
    await scene.write(one, words('one', 'x'));
    await scene.write(other, words('other', 'y'));
    expect((await compare(scene, one, other)).firstDifference).toMatchObject({ stepNumber: 2050n });
  });

  it('RD5: a list of rewards covers at most 10,000 numbers', async () => {
    const scene = on.scene();
    const one = await scene.createWith(['a']);
    expect(await compare(scene, one, one, { endStepNumber: 10_000n })).toMatchObject({ rewards: [{ stepNumber: 0n }] });
    expect(await refusalOf(compare(scene, one, one, { endStepNumber: 10_001n }))).toMatchObject({
      violations: [{ field: 'end_step_number' }],
    });
    expect((await compare(scene, one, one, { startStepNumber: 5n, endStepNumber: 9n })).rewards).toEqual([]);
  });

  it('RD5: the error names an unknown trajectory', async () => {
    const scene = on.scene();
    const one = await scene.createWith(['a']);
    const refusal = await refusalOf(compare(scene, one, { id: crypto.randomUUID() }));
    expect(refusal.reason).toBe('TRAJECTORY_NOT_FOUND');
  });
});

function compare(scene: AppScene, one: { id: string }, other: { id: string }, fields: Partial<ListRange> = {}) {
  return scene.rpc.compareTrajectories({ trajectoryId: one.id, otherTrajectoryId: other.id, ...fields });
}
