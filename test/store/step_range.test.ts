import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { OwnedStep, StepView } from '../../src/store/contract/step.ts';
import { makeStep, newState, stateRef, textAction, textObservation, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { wordOf } from './scene.ts';
import { threeDeep, WORDS } from './three_deep.ts';

const MANY = { maxSteps: 1000, maxBytes: 1024 * 1024 };

describeStore('reading ranges of steps', (on) => {
  it('RD1, O2: every range of a lineage equals the slice of the naive copy, with its owners', async () => {
    const scene = on.scene();
    const { root, middle, leaf, lineage } = await threeDeep(scene);
    const owners = [root, root, root, root, middle, leaf, leaf].map(({ id, ref }) => ({ id, key: ref.key }));
    for (let from = 0; from <= 7; from += 1)
      for (let to = 0; to <= 8; to += 1) {
        const range = { from: BigInt(from), to: BigInt(to), ...MANY };
        const read = await scene.store.readSteps(scene.namespace, leaf.ref.tree, lineage, range, 'FULL');
        expect(read.map(({ step }) => wordOf(step))).toEqual(WORDS.slice(from, to));
        expect(read.map(({ owner }) => owner)).toEqual(owners.slice(from, to));
        expect(read.map(({ step }) => Number(step.stepNumber))).toEqual(WORDS.map((_, i) => i).slice(from, to));
      }
  });

  it('RD1: pages of one step together equal one page of all', async () => {
    const scene = on.scene();
    const { leaf } = await threeDeep(scene);
    expect(await scene.steps(leaf, 'FULL', 1)).toEqual(await scene.steps(leaf, 'FULL', 1000));
    expect(await scene.steps(leaf, 'FULL', 2)).toEqual(await scene.steps(leaf, 'FULL', 1000));
  });

  it('RD3: a page ends early when its byte limit is reached, but contains at least one step', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const text = 'x'.repeat(100_000);
    await scene.append(
      made,
      Array.from({ length: 10 }, (_, i) => makeStep(BigInt(i), { infoJson: JSON.stringify(text) })),
    );
    const lineage = await scene.lineage(made);
    const read = async (maxBytes: number, from = 0n, view: StepView = 'FULL') => {
      const range = { from, to: 10n, maxSteps: 1000, maxBytes };
      return scene.store.readSteps(scene.namespace, made.ref.tree, lineage, range, view);
    };
    expect(await read(1)).toHaveLength(1);
    expect(await read(1, 9n)).toHaveLength(1);
    const some = await read(350_000);
    expect(some.length).toBeGreaterThanOrEqual(2);
    expect(some.length).toBeLessThanOrEqual(4);
    expect(await read(350_000, 9n)).toHaveLength(1);
    expect(await read(2_000_000)).toHaveLength(10);
  });

  it('RD3: the limit counts bytes, not characters', async () => {
    const scene = on.scene();
    const made = await scene.create({ taskId: 'wide' });
    const infoJson = JSON.stringify('中'.repeat(100_000));
    await scene.append(
      made,
      Array.from({ length: 4 }, (_, i) => makeStep(BigInt(i), { infoJson })),
    );
    const range = { from: 0n, to: 4n, maxSteps: 1000, maxBytes: 700_000 };
    const lineage = await scene.lineage(made);
    const read = await scene.store.readSteps(scene.namespace, made.ref.tree, lineage, range, 'FULL');
    expect(read).toHaveLength(2);
    const page = { limit: 100, maxBytes: 700_000, after: undefined };
    const of = { taskId: 'wide' };
    const sort = { by: 'NUMBER', descending: false } as const;
    const listed = await scene.store.listSteps(scene.namespace, { of }, sort, page, 'FULL');
    expect(listed.steps).toHaveLength(2);
  });

  it('RD3: bytes are counted along the lineage, also after branch points of far longer parents', async () => {
    const scene = on.scene();
    const text = JSON.stringify('x'.repeat(50_000));
    const fat = (n: number) => makeStep(BigInt(n), { infoJson: text });
    const root = await scene.create();
    await scene.append(
      root,
      Array.from({ length: 8 }, (_, i) => fat(i)),
    );
    const child = await scene.branch(root, 1n);
    await scene.append(child, [fat(2), fat(3), wordStep(4n, 'thin'), fat(5)]);
    const pages: number[] = [];
    const lineage = await scene.lineage(child);
    for (let from = 0n; from < 6n; ) {
      const range = { from, to: 6n, maxSteps: 1000, maxBytes: 110_000 };
      const page = await scene.store.readSteps(scene.namespace, root.ref.tree, lineage, range, 'FULL');
      pages.push(page.length);
      from = (page.at(-1) as OwnedStep).step.stepNumber + 1n;
    }
    expect(pages.reduce((sum, n) => sum + n, 0)).toBe(6);
    expect(Math.max(...pages)).toBeLessThanOrEqual(3);
    expect(Math.max(...pages)).toBeGreaterThanOrEqual(2);
  });

  it('FM7: BASIC omits actions, observations, info and metadata, and nothing else', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('s');
    const step = makeStep(0n, {
      actions: [textAction('a')],
      observations: [textObservation('o')],
      infoJson: '{}',
      metadataJson: '[]',
      reward: 1,
      terminated: true,
      truncated: true,
      metrics: new Map([['m', 1]]),
      startTime: 1n,
      endTime: 2n,
      states: [stateRef(state)],
    });
    await scene.append(made, [step], { states: [state] });
    const [full] = await scene.steps(made, 'FULL');
    const [basic] = await scene.steps(made, 'BASIC');
    expect(basic).toEqual({
      owner: full?.owner,
      step: { ...full?.step, actions: [], observations: [], infoJson: '', metadataJson: '' },
    });
  });

  it('RD1: a lineage of a hundred owners is read in order', async () => {
    const scene = on.scene();
    let last = await scene.createWith(['0']);
    const words = ['0'];
    for (let depth = 1; depth <= 100; depth += 1) {
      last = await scene.branch(last, BigInt(depth - 1));
      await scene.append(last, [wordStep(BigInt(depth), `${depth}`)]);
      words.push(`${depth}`);
    }
    expect(await scene.words(last)).toEqual(words);
    const read = await scene.store.readOutlines(scene.namespace, last.ref.tree, await scene.lineage(last), 50n, 10);
    expect(read.map(({ stepNumber }) => Number(stepNumber))).toEqual([50, 51, 52, 53, 54, 55, 56, 57, 58, 59]);
  });

  it('RD1: steps deleted meanwhile are missing, never an error and never another step', async () => {
    const scene = on.scene();
    const { root, leaf, lineage } = await threeDeep(scene);
    await scene.delete(root, 'CASCADE');
    const range = { from: 0n, to: 7n, ...MANY };
    expect(await scene.store.readSteps(scene.namespace, leaf.ref.tree, lineage, range, 'FULL')).toEqual([]);
    expect(await scene.store.readOutlines(scene.namespace, leaf.ref.tree, lineage, 0n, 100)).toEqual([]);
    expect(await scene.store.findCheckpoint(scene.namespace, leaf.ref.tree, lineage, 7n, [])).toBeUndefined();
    expect(await scene.store.getLineage(scene.namespace, leaf.ref)).toEqual([]);
  });

  it('RD5: outlines contain numbers, rewards and hashes of stored bytes, from any number on, up to a limit', async () => {
    const scene = on.scene();
    const root = await scene.create();
    const steps = [0.5, undefined, Number.NaN, -Infinity].map((reward, i) => wordStep(BigInt(i), `${i}`, { reward }));
    await scene.append(root, steps);
    const child = await scene.branch(root, 1n);
    await scene.append(child, [wordStep(2n, 'other', { reward: 7 })]);
    const outline = async (trajectory: Trajectory, from: bigint, limit: number) =>
      scene.store.readOutlines(scene.namespace, root.ref.tree, await scene.lineage(trajectory), from, limit);
    const hash = expect.stringMatching(/^[0-9a-f]{64}$/);
    const whole = await outline(root, 0n, 100);
    expect(whole).toEqual(steps.map(({ stepNumber, reward }) => ({ stepNumber, reward, hash })));
    const ofChild = await outline(child, 0n, 100);
    expect(ofChild.map((each, i) => each.hash === whole[i]?.hash)).toEqual([true, true, false]);
    expect((await outline(child, 1n, 100)).map(({ reward }) => reward)).toEqual([undefined, 7]);
    expect(await outline(root, 1n, 2)).toHaveLength(2);
    expect(await outline(root, 4n, 2)).toEqual([]);
  });
});
