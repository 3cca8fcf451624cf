import { expect, it } from 'vitest';
import { BranchMeasure } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { refusalOf } from '../store/scene.ts';
import { describeApp, step } from './on_app.ts';

describeApp('CompareBranches', (on) => {
  it('RD11: pairs branches of the same parent and branch point by a label, averaged, and compares them', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c', 'd']);
    const branch = async (at: bigint, lr: string, rewards: readonly number[]) => {
      const made = await scene.rpc.branchTrajectory({ trajectoryId: root.id, stepNumber: at, labels: { lr } });
      const { id } = made.trajectory!;
      await scene.write(
        { id },
        rewards.map((reward, i) => step(at + 1n + BigInt(i), 'w', { reward })),
      );
    };
    await branch(0n, '0.1', [1, 2]);
    await branch(0n, '0.01', [5]);
    await branch(0n, '0.01', [7, 2]);
    await branch(1n, '0.1', [4]);
    await branch(1n, '0.01', [3]);
    await branch(1n, 'none', [100]);
    await branch(2n, '0.1', [100]);
    await branch(3n, '0.1', []);
    await branch(3n, '0.01', [1]);
    await branch(2n, '0.01', [Number.POSITIVE_INFINITY]);
    const request = { treeId: root.id, label: 'lr', value: '0.1', otherValue: '0.01' };
    const answer = await scene.rpc.compareBranches(request);
    const of = { parentId: root.id };
    expect(answer).toMatchObject({
      pairs: [
        { ...of, branchPoint: 0n, value: 3, otherValue: 7, difference: 4, branches: 1, otherBranches: 2 },
        { ...of, branchPoint: 1n, value: 4, otherValue: 3, difference: -1, branches: 1, otherBranches: 1 },
      ],
      pairCount: 2,
      meanDifference: 1.5,
      intervalLow: -1,
      intervalHigh: 4,
      higher: 1,
      lower: 1,
      signTestP: 1,
    });
    const means = await scene.rpc.compareBranches({ ...request, measure: BranchMeasure.REWARD_MEAN });
    expect(means.pairs.map(({ value, otherValue }) => [value, otherValue])).toEqual([
      [1.5, 4.75],
      [4, 3],
    ]);
    const steps = await scene.rpc.compareBranches({ ...request, measure: BranchMeasure.STEPS });
    expect(steps.pairs.map(({ difference }) => difference)).toEqual([-0.5, 0, 0]);
    expect(await scene.rpc.compareBranches(request)).toEqual(answer);
    const same = scene.rpc.compareBranches({ ...request, otherValue: '0.1' });
    expect((await refusalOf(same)).reason).toBe('INVALID_REQUEST');
  });
});
