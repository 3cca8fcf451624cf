import { expect, it } from 'vitest';
import type { Step } from '../../src/domain/step.ts';
import type { OwnedStep, StepCursor, StepFilter, StepSort } from '../../src/store/contract/step.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { type Scene, wordOf } from './scene.ts';
import { threeDeep, WORDS } from './three_deep.ts';

describeStore('listing steps', (on) => {
  const LIMIT = { limit: 1000, maxBytes: 1024 * 1024 };
  const NUMBER: StepSort = { by: 'NUMBER', descending: false };

  async function list(scene: Scene, where: StepFilter, sort: StepSort = NUMBER): Promise<OwnedStep[]> {
    return scene.store.listSteps(scene.namespace, where, sort, { ...LIMIT, after: undefined }, 'FULL');
  }

  async function paged(scene: Scene, where: StepFilter, sort: StepSort): Promise<OwnedStep[]> {
    const all: OwnedStep[] = [];
    for (let after: StepCursor | undefined; ; ) {
      const page = await scene.store.listSteps(scene.namespace, where, sort, { ...LIMIT, limit: 1, after }, 'FULL');
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

  async function lineage(scene: Scene) {
    const { leaf, lineage } = await threeDeep(scene);
    return { leaf, of: { tree: leaf.ref.tree, lineage } };
  }

  it('RD4: a lineage lists its steps, including inherited ones, in both orders of number', async () => {
    const scene = on.scene();
    const { of } = await lineage(scene);
    expect(words(await list(scene, { of }))).toEqual(WORDS);
    expect(words(await list(scene, { of }, { by: 'NUMBER', descending: true }))).toEqual([...WORDS].reverse());
  });

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

  /** Six steps with every kind of reward, across a branch point. */
  async function rewarded(scene: Scene) {
    const root = await scene.create({ taskId: 'R' });
    const rewards = [1, undefined, -Infinity, Number.NaN];
    await scene.append(
      root,
      rewards.map((reward, i) => wordStep(BigInt(i), `${reward}`, { reward })),
    );
    const child = await scene.branch(root, 3n);
    await scene.append(child, [
      wordStep(4n, 'Infinity', { reward: Infinity }),
      wordStep(5n, 'again 1', { reward: 1 }),
      wordStep(6n, '0', { reward: 0 }),
      wordStep(7n, 'again NaN', { reward: Number.NaN }),
    ]);
    return { tree: root.ref.tree, lineage: await scene.lineage(child) };
  }

  it('RD4, W11: sorted by reward, missing and NaN are last in both orders, also in pages', async () => {
    const scene = on.scene();
    const of = await rewarded(scene);
    for (const descending of [false, true]) {
      const sort = { by: 'REWARD', descending } as const;
      const all = await list(scene, { of }, sort);
      const known = descending
        ? ['Infinity', 'again 1', '1', '0', '-Infinity']
        : ['-Infinity', '0', '1', 'again 1', 'Infinity'];
      expect(words(all).slice(0, 5)).toEqual(known);
      expect(words(all).slice(5).sort()).toEqual(['NaN', 'again NaN', 'undefined']);
      expect(words(await paged(scene, { of }, sort))).toEqual(words(all));
    }
  });

  it('RD4, W11: both reward bounds are inclusive; NaN and missing never match', async () => {
    const scene = on.scene();
    const of = await rewarded(scene);
    const between = async (minReward?: number, maxReward?: number) => {
      const bounds = {
        ...(minReward === undefined ? {} : { minReward }),
        ...(maxReward === undefined ? {} : { maxReward }),
      };
      return words(await list(scene, { of, ...bounds }));
    };
    expect(await between(0, 1)).toEqual(['1', 'again 1', '0']);
    expect(await between(1)).toEqual(['1', 'Infinity', 'again 1']);
    expect(await between(undefined, 0)).toEqual(['-Infinity', '0']);
    expect(await between(-Infinity, Infinity)).toEqual(['1', '-Infinity', 'Infinity', 'again 1', '0']);
    expect(await between(Infinity)).toEqual(['Infinity']);
    expect(await between(2, 1)).toEqual([]);
  });

  it('RD4: sorted by commit time, in both orders, also in pages', async () => {
    const scene = on.scene();
    const one = await scene.create({ taskId: 'T' });
    const two = await scene.create({ taskId: 'T' });
    const times: bigint[] = [];
    for (const [trajectory, n] of [
      [two, 0n],
      [one, 0n],
      [one, 1n],
      [two, 1n],
    ] as const)
      times.push((await scene.append(trajectory, [wordStep(n, `${times.length}`)])).commitTime);
    const of = { taskId: 'T' };
    for (const descending of [false, true]) {
      const sort = { by: 'TIME', descending } as const;
      const expected = descending ? ['3', '2', '1', '0'] : ['0', '1', '2', '3'];
      expect(words(await list(scene, { of }, sort))).toEqual(expected);
      expect(words(await paged(scene, { of }, sort))).toEqual(expected);
    }
    const [, second, third] = times as [bigint, bigint, bigint, bigint];
    expect(
      words(
        await list(scene, { of, commitTimeFrom: second, commitTimeTo: third + 1n }, { by: 'TIME', descending: false }),
      ),
    ).toEqual(['1', '2']);
  });

  it('RD4: steps of one commit have the same time, and pages by time still lose none', async () => {
    const scene = on.scene();
    const made = await scene.create({ taskId: 'T' });
    await scene.append(
      made,
      Array.from({ length: 12 }, (_, i) => wordStep(BigInt(i), `${i}`, { reward: 1 })),
    );
    for (const by of ['TIME', 'REWARD'] as const)
      for (const descending of [false, true]) {
        const expected = Array.from({ length: 12 }, (_, i) => `${descending ? 11 - i : i}`);
        expect(words(await paged(scene, { of: { taskId: 'T' } }, { by, descending }))).toEqual(expected);
      }
  });

  it('RD4: rewards 0 and -0 are equal in the order, and pages by reward lose none of them', async () => {
    const scene = on.scene();
    const made = await scene.create({ taskId: 'zeros' });
    const rewards = [0, -0, 1, -0, 0, -1];
    await scene.append(
      made,
      rewards.map((reward, i) => wordStep(BigInt(i), `${i}`, { reward })),
    );
    const of = { taskId: 'zeros' };
    expect(words(await paged(scene, { of }, { by: 'REWARD', descending: false }))).toEqual([
      '5',
      '0',
      '1',
      '3',
      '4',
      '2',
    ]);
    expect(words(await paged(scene, { of }, { by: 'REWARD', descending: true }))).toEqual([
      '2',
      '4',
      '3',
      '1',
      '0',
      '5',
    ]);
    expect(words(await list(scene, { of, minReward: 0, maxReward: 0 }))).toEqual(['0', '1', '3', '4']);
    expect(words(await list(scene, { of, minReward: -0, maxReward: -0 }))).toEqual(['0', '1', '3', '4']);
  });

  it('RD4: filters: terminal or truncated, and having a state, of a given name or any', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('s');
    const steps: Step[] = [
      wordStep(0n, 'plain'),
      wordStep(1n, 'terminated', { terminated: true }),
      wordStep(2n, 'truncated', { truncated: true }),
      wordStep(3n, 'env', { states: [stateRef(state)] }),
      wordStep(4n, 'agent', { states: [stateRef(state, 'agent')], terminated: true }),
      wordStep(5n, 'both', { states: [stateRef(state, 'agent'), stateRef(state, 'env')] }),
    ];
    await scene.append(made, steps, { states: [state] });
    const of = { tree: made.ref.tree, lineage: await scene.lineage(made) };
    expect(words(await list(scene, { of, terminalOnly: true }))).toEqual(['terminated', 'truncated', 'agent']);
    expect(words(await list(scene, { of, terminalOnly: false }))).toHaveLength(6);
    expect(words(await list(scene, { of, hasState: true }))).toEqual(['env', 'agent', 'both']);
    expect(words(await list(scene, { of, hasState: 'env' }))).toEqual(['env', 'both']);
    expect(words(await list(scene, { of, hasState: 'ENV' }))).toEqual([]);
    expect(words(await list(scene, { of, hasState: 'agent', terminalOnly: true }))).toEqual(['agent']);
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
    expect(await page(1)).toHaveLength(1);
    const some = await page(350_000);
    expect(some.length).toBeGreaterThanOrEqual(2);
    expect(some.length).toBeLessThanOrEqual(4);
  });

  it('an empty lineage lists nothing', async () => {
    const scene = on.scene();
    const made = await scene.create();
    expect(await list(scene, { of: { tree: made.ref.tree, lineage: await scene.lineage(made) } })).toEqual([]);
  });
});
