import { expect, it } from 'vitest';
import type { OwnedStep, StepCursor, StepFilter, StepSort } from '../../src/store/contract/step.ts';
import { makeStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { type Scene, wordOf } from './scene.ts';

describeStore('listing steps', (on) => {
  const LIMIT = { limit: 1000, maxBytes: 1024 * 1024 };
  const NUMBER: StepSort = { by: 'NUMBER', descending: false };

  async function list(scene: Scene, where: StepFilter, sort: StepSort = NUMBER): Promise<readonly OwnedStep[]> {
    return (await scene.store.listSteps(scene.namespace, where, sort, { ...LIMIT, after: undefined }, 'FULL')).steps;
  }

  async function paged(scene: Scene, where: StepFilter, sort: StepSort): Promise<OwnedStep[]> {
    const all: OwnedStep[] = [];
    for (let after: StepCursor | undefined; ; ) {
      const { steps: page } = await scene.store.listSteps(
        scene.namespace,
        where,
        sort,
        { ...LIMIT, limit: 1, after },
        'FULL',
      );
      const [last] = page;
      if (last === undefined) return all;
      expect(page).toHaveLength(1);
      all.push(last);
      const { stepNumber, reward, commitTime } = last.step;
      after = { key: last.owner.key, stepNumber, reward, commitTime };
      if (all.length > 100) throw new Error('the pages do not end');
    }
  }

  const words = (steps: readonly OwnedStep[]) => steps.map(({ step }) => wordOf(step));

  it('RD4: a task lists own steps of all its trajectories, by number, then in creation order', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a0', 'a1'], { taskId: 'T' });
    const child = await scene.branch(root, 0n);
    await scene.appendWords(child, ['b1']);
    await scene.createWith(['x'], { taskId: 't' });
    const other = await scene.createWith(['c0', 'c1'], { taskId: 'T' });
    const expected = ['a0', 'c0', 'a1', 'b1', 'c1'];
    expect(words(await list(scene, { of: { taskId: 'T' } }))).toEqual(expected);
    expect(words(await list(scene, { of: { taskId: 'T' } }, { by: 'NUMBER', descending: true }))).toEqual(
      [...expected].reverse(),
    );
    expect(words(await paged(scene, { of: { taskId: 'T' } }, NUMBER))).toEqual(expected);
    await scene.delete(other);
    expect(words(await list(scene, { of: { taskId: 'T' } }))).toEqual(['a0', 'a1', 'b1']);
    expect(await list(scene, { of: { taskId: 'nothing' } })).toEqual([]);
  });

  it('RD4: steps of a deleted trajectory that are kept only for its branches are not listed', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a0', 'a1'], { taskId: 'T' });
    const child = await scene.branch(root, 0n);
    await scene.appendWords(child, ['b1']);
    await scene.delete(root, 'KEEP_SHARED');
    expect(words(await list(scene, { of: { taskId: 'T' } }))).toEqual(['b1']);
  });

  it('RD4: with inherited, a task also lists what its trajectories inherit from others, with an heir of each', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a0', 'a1', 'a2'], { taskId: 'T' });
    const side = await scene.branch(root, 0n);
    await scene.appendWords(side, ['b1']);
    const copy = await scene.branch(root, 1n, { taskId: 'copy' });
    const further = await scene.branch(copy, 1n);
    await scene.appendWords(further, ['c2']);
    const beside = await scene.branch(side, 1n, { taskId: 'copy' });
    const where = { of: { taskId: 'copy' }, inherited: true };
    const expected = [
      ['a0', copy.id],
      ['a1', copy.id],
      ['b1', beside.id],
      ['c2', further.id],
    ];
    const heirs = async () => (await list(scene, where)).map(({ step, heir }) => [wordOf(step), heir]);
    expect(await heirs()).toEqual(expected);
    expect(words(await paged(scene, where, { by: 'TIME', descending: true })).sort()).toEqual(
      words(await list(scene, where)).sort(),
    );
    expect(words(await list(scene, { of: { taskId: 'copy' } }))).toEqual(['c2']);
    expect(words(await list(scene, { of: { taskId: 'T' } }))).toEqual(['a0', 'a1', 'b1', 'a2']);
    await scene.delete(side, 'KEEP_SHARED');
    await scene.delete(root, 'KEEP_SHARED');
    expect(await heirs()).toEqual(expected);
  });

  it('RD3: a page ends early when its byte limit is reached, but contains at least one step', async () => {
    const scene = on.scene();
    const made = await scene.create({ taskId: 'T' });
    const infoJson = JSON.stringify('x'.repeat(100_000));
    await scene.append(
      made,
      Array.from({ length: 8 }, (_, i) => makeStep(BigInt(i), { infoJson })),
    );
    const page = (maxBytes: number) =>
      scene.store.listSteps(
        scene.namespace,
        { of: { taskId: 'T' } },
        NUMBER,
        { limit: 100, maxBytes, after: undefined },
        'FULL',
      );
    const one = await page(1);
    expect([one.steps.length, one.isCut]).toEqual([1, true]);
    const some = await page(350_000);
    expect(some.steps.length).toBeGreaterThanOrEqual(2);
    expect(some.steps.length).toBeLessThanOrEqual(4);
    expect(some.isCut).toBe(true);
    const all = await page(2_000_000);
    expect([all.steps.length, all.isCut]).toEqual([8, false]);
  });

  it('an empty lineage lists nothing', async () => {
    const scene = on.scene();
    const made = await scene.create();
    expect(await list(scene, { of: { tree: made.ref.tree, lineage: await scene.lineage(made) } })).toEqual([]);
  });
});
