import { expect, it } from 'vitest';
import type { StepSort } from '../../src/store/contract/step.ts';
import { wordStep } from '../support/steps.ts';
import { changeBefore } from './change_before.ts';
import { describeStore } from './on_store.ts';

const STEPS = 90;
/** More than the stored segments that the first statement looks into. */
const LISTED = 40;

describeStore('lists of steps concurrent with a merge', (on) => {
  const REWARD: StepSort = { by: 'REWARD', descending: true };
  it.each([
    ['by reward, before the second statement', REWARD, /limit 64/],
    ['by smallest reward, before the second statement', { by: 'REWARD', descending: false }, /limit 64/],
    ['by time, before the second statement', { by: 'TIME', descending: true }, /limit 64/],
    ['by reward, before the steps are read', REWARD, /attached_states/],
  ] as const)('RD4: a list %s, has the same steps if rows are merged meanwhile', async (_name, order, statement) => {
    const scene = on.scene();
    const made = await scene.create();
    for (let i = 0; i < STEPS; i += 1) {
      await scene.append(made, [wordStep(BigInt(i), `${i}`, { reward: (i * 37) % STEPS })]);
    }
    const of = { tree: made.ref.tree, lineage: await scene.lineage(made) };
    const list = async () => {
      const page = { limit: LISTED, after: undefined, maxBytes: 1e6 };
      const { steps } = await scene.store.listSteps(scene.namespace, { of }, order, page, 'FULL');
      return steps.map(({ step }) => step);
    };
    const before = await list();
    expect(before).toHaveLength(LISTED);
    let merges = 0;
    const merge = async () => {
      merges += 1;
      for (let left = [{ ref: made.ref, rest: true }]; left.length > 0; ) left = await scene.store.mergeSteps(left);
    };
    expect(await changeBefore(on.engine, statement, merge, list)).toEqual(before);
    expect(merges).toBe(1);
    const [rows] = await on.sql.rows(`select count(*) as count from segments where tree = ${made.ref.tree}`);
    expect(Number(rows?.count)).toBeLessThan(STEPS);
    expect(await list()).toEqual(before);
  });
});
