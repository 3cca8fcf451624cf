import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { Step } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { packed } from '../support/packed_steps.ts';
import { makeStep, newState, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { refusalOf } from './scene.ts';

describeStore('appending', (on) => {
  it('W2: steps are returned in order with epoch, commit time and running sum of rewards', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const epoch = await scene.open(made);
    const one = await scene.append(made, [wordStep(0n, 'a', { reward: 1.5 })], { writerEpoch: epoch });
    const two = await scene.append(made, [wordStep(1n, 'b'), wordStep(2n, 'c', { reward: -1 })], {
      writerEpoch: epoch,
    });
    expect(one).toMatchObject({ nextStepNumber: 1n, duplicates: 0, status: 'RUNNING', sealTime: undefined });
    expect(two).toMatchObject({ nextStepNumber: 3n, duplicates: 0 });
    const steps = (await scene.steps(made)).map(({ step }) => step);
    expect(steps.map(({ stepNumber }) => stepNumber)).toEqual([0n, 1n, 2n]);
    expect(steps.map(({ writerEpoch }) => writerEpoch)).toEqual([epoch, epoch, epoch]);
    expect(steps.map(({ rewardSum }) => rewardSum)).toEqual([1.5, 1.5, 0.5]);
    expect(steps.map(({ commitTime }) => commitTime)).toEqual([one.commitTime, two.commitTime, two.commitTime]);
    expect(await scene.get(made.id)).toMatchObject({ nextStepNumber: 3n, rewardSum: 0.5, updateTime: two.commitTime });
  });

  it('R1: an acked step can be read at once', async () => {
    const scene = on.scene();
    const made = await scene.create();
    for (let n = 0n; n < 20n; n += 1n) {
      await scene.append(made, [wordStep(n, `${n}`)]);
      expect((await scene.words(made)).at(-1)).toBe(`${n}`);
    }
  });

  it('W2, W6, I1: a replay is a duplicate and changes nothing, whatever its batch boundaries', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b', 'c']);
    const before = await scene.steps(made);
    const step = (n: number) => wordStep(BigInt(n), ['a', 'b', 'c', 'd'][n] as string);
    expect(await scene.append(made, [step(1)])).toMatchObject({ duplicates: 1, nextStepNumber: 3n });
    expect(await scene.append(made, [step(2), step(0), step(0)])).toMatchObject({ duplicates: 3, nextStepNumber: 3n });
    expect(await scene.append(made, [step(1), step(2), step(3)])).toMatchObject({ duplicates: 2, nextStepNumber: 4n });
    expect((await scene.steps(made)).slice(0, 3)).toEqual(before);
  });

  it('W2: a replay that follows a new step in the same batch is a duplicate too', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b']);
    expect(await scene.append(made, [wordStep(2n, 'c'), wordStep(0n, 'a')])).toMatchObject({
      duplicates: 1,
      nextStepNumber: 3n,
    });
    expect(await scene.words(made)).toEqual(['a', 'b', 'c']);
  });

  it('W4: a replay returns the time of the first commit, under any statement name; a new step has the current time', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const [a, b, c, d] = ['a', 'b', 'c', 'd'].map((word, i) => wordStep(BigInt(i), word)) as [Step, Step, Step, Step];
    const first = await scene.append(made, [a]);
    const second = await scene.append(made, [b]);
    expect((await scene.append(made, [a])).commitTime).toBe(first.commitTime);
    expect((await scene.append(made, [a, b])).commitTime).toBe(second.commitTime);
    const child = await scene.branch(made, 1n);
    expect((await scene.append(child, [a])).commitTime).toBe(first.commitTime);
    const third = await scene.append(made, [b, c]);
    const fourth = await scene.append(made, [d, a]);
    const stored = (await scene.steps(made)).map(({ step }) => step.commitTime);
    expect(stored).toEqual([first, second, third, fourth].map(({ commitTime }) => commitTime));
  });

  it('W2: inherited steps count as stored: the same content is a duplicate, other content a conflict', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const child = await scene.branch(await scene.branch(root, 1n), 0n);
    await scene.appendWords(child, ['B']);
    expect(await scene.append(child, [wordStep(0n, 'a'), wordStep(1n, 'B')])).toMatchObject({ duplicates: 2 });
    const conflict = await refusalOf(scene.append(child, [wordStep(1n, 'b')]));
    expect(conflict).toMatchObject({ reason: 'STEP_CONFLICT', metadata: { step_number: '1', next_step_number: '2' } });
    expect((await refusalOf(scene.append(child, [wordStep(0n, 'A')]))).reason).toBe('STEP_CONFLICT');
    expect(await scene.words(root)).toEqual(['a', 'b', 'c']);
  });

  it('W2: conflict, gap, epoch and seal are refused, and a refused append writes nothing', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b']);
    const epoch = await scene.open(made);
    const good = wordStep(2n, 'c');
    const state = newState('unseen');
    const refusals: [readonly ReturnType<typeof wordStep>[], bigint | undefined, string][] = [
      [[good, wordStep(1n, 'B')], epoch, 'STEP_CONFLICT'],
      [[good, wordStep(4n, 'e')], epoch, 'STEP_GAP'],
      [[good], undefined, 'WRITER_FENCED'],
      [[good], epoch - 1n, 'WRITER_FENCED'],
      [[good], epoch + 1n, 'WRITER_FENCED'],
    ];
    for (const [steps, writerEpoch, reason] of refusals) {
      const error = await refusalOf(scene.append(made, steps, { writerEpoch, states: [state] }));
      expect(error.reason).toBe(reason);
    }
    expect(await scene.get(made.id)).toMatchObject({ nextStepNumber: 2n });
    expect(await scene.words(made)).toEqual(['a', 'b']);
    expect(await scene.store.findStates(scene.namespace, [state.digest], false)).toEqual([]);
  });

  it('W8: a unary append to another uid, or to a hidden or deleted trajectory, is NOT_FOUND', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await scene.branch(made, 0n);
    const next = wordStep(1n, 'b');
    expect((await refusalOf(scene.append(made, [next], { uid: randomUUID() }))).reason).toBe('TRAJECTORY_NOT_FOUND');
    await scene.append(made, [next], { uid: made.uid });
    await scene.delete(made, 'KEEP_SHARED');
    expect((await refusalOf(scene.append(made, [wordStep(2n, 'c')]))).reason).toBe('TRAJECTORY_NOT_FOUND');
    await scene.delete(made, 'KEEP_SHARED').catch(() => undefined);
    const deleted = await scene.createWith(['a']);
    await scene.delete(deleted);
    expect((await refusalOf(scene.append(deleted, [next]))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('W3: of two different steps sent concurrently for one number, one is stored and the other is refused', async () => {
    const scene = on.scene();
    for (let round = 0; round < 10; round += 1) {
      const made = await scene.create();
      const results = await Promise.allSettled(['x', 'y', 'z'].map((word) => scene.append(made, [wordStep(0n, word)])));
      const stored = results
        .map((each, i) => (each.status === 'fulfilled' ? ['x', 'y', 'z'][i] : undefined))
        .filter(Boolean);
      expect(stored).toHaveLength(1);
      for (const each of results)
        if (each.status === 'rejected') expect(each.reason).toMatchObject({ reason: 'STEP_CONFLICT' });
      expect(await scene.words(made)).toEqual(stored);
    }
  });

  it('W6: the same step sent twice concurrently is stored once and acked twice', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const results = await Promise.all(Array.from({ length: 6 }, () => scene.append(made, [wordStep(0n, 'a')])));
    expect(results.reduce((sum, { duplicates }) => sum + duplicates, 0)).toBe(5);
    for (const { nextStepNumber } of results) expect(nextStepNumber).toBe(1n);
  });

  it('O1: positions above 2^53 stay distinct', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const end = 2n ** 53n;
    await on.sql.rows(`update trajectories set next_step_number = ${end} where namespace = '${scene.namespace}'`);
    const far = await scene.get(made.id);
    expect(far.nextStepNumber).toBe(end);
    await scene.append(far, [wordStep(end, 'x'), wordStep(end + 1n, 'y'), wordStep(end + 2n, 'z')]);
    const lineage = [{ key: made.ref.key, from: 0n, to: end + 3n }];
    const range = { from: end + 1n, to: end + 3n, maxSteps: 10, maxBytes: 1e6 };
    const steps = await scene.store.readSteps(scene.namespace, made.ref.tree, lineage, range, 'FULL');
    expect(steps.map(({ step }) => step.stepNumber)).toEqual([end + 1n, end + 2n]);
    const child = await scene.branch(far, end + 1n);
    expect(child).toMatchObject({ nextStepNumber: end + 2n, parent: { branchPoint: end + 1n } });
    expect((await scene.append(child, [wordStep(end + 1n, 'y')])).duplicates).toBe(1);
    expect((await refusalOf(scene.append(child, [wordStep(end + 3n, 'w')]))).metadata).toMatchObject({
      next_step_number: `${end + 2n}`,
    });
  });

  it('W11: a reward sum that became NaN, from both infinities, does not block later appends', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const rewards = [Infinity, -Infinity, 1];
    await scene.append(
      made,
      rewards.slice(0, 2).map((reward, i) => wordStep(BigInt(i), 'r', { reward })),
    );
    await scene.append(made, [wordStep(2n, 'r', { reward: 1 })]);
    expect((await scene.steps(made)).map(({ step }) => step.rewardSum)).toEqual([Infinity, Number.NaN, Number.NaN]);
    expect((await scene.get(made.id)).rewardSum).toBeNaN();
    expect((await scene.branch(made, 2n)).rewardSum).toBeNaN();
    expect((await scene.branch(made, 0n)).rewardSum).toBe(Infinity);
  });

  it('W3: as many steps as fit into a message of 1 MiB form one batch, and can be replayed, also on a branch', async () => {
    const scene = on.scene();
    const made = await scene.create();
    // An empty step takes about seven bytes of a message: two for its place in the frame, and its number.
    const steps = Array.from({ length: 70_000 }, (_, i) => packed(makeStep(BigInt(i))));
    const append = (to: Trajectory) => scene.append(to, [], { steps });
    expect(await append(made)).toMatchObject({ nextStepNumber: 70_000n, duplicates: 0 });
    expect(await append(made)).toMatchObject({ nextStepNumber: 70_000n, duplicates: 70_000 });
    const child = await scene.branch(made, 69_998n);
    expect(await append(child)).toMatchObject({ nextStepNumber: 70_000n, duplicates: 69_999 });
    await scene.delete(made, 'CASCADE');
  });

  it('W3: a batch of a thousand steps is stored as one batch', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const steps = Array.from({ length: 1000 }, (_, i) => wordStep(BigInt(i), `${i}`));
    expect(await scene.append(made, steps)).toMatchObject({ nextStepNumber: 1000n });
    expect(new Set((await scene.steps(made)).map(({ step }) => step.commitTime)).size).toBe(1);
    expect(await scene.append(made, steps)).toMatchObject({ nextStepNumber: 1000n, duplicates: 1000 });
  });
});
