import { expect, it } from 'vitest';
import type { Segment } from '../../src/domain/lineage.ts';
import type { NewState, NewStep } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { OwnedStep, StepCursor, StepFilter, StepSort, StepView } from '../../src/store/contract/step.ts';
import { newState, newStep, stateRef, textAction, textObservation, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { type Scene, wordOf } from './scene.ts';

const MANY = { maxSteps: 1000, maxBytes: 1024 * 1024 };

/** A root of a0 … a5, a branch at 3 with b4 b5, and a branch of that at 4 with c5 c6: three owners in one lineage. */
async function threeDeep(scene: Scene) {
  const root = await scene.createWith(['a0', 'a1', 'a2', 'a3', 'a4', 'a5']);
  const middle = await scene.branch(root, 3n);
  await scene.appendWords(middle, ['b4', 'b5']);
  const leaf = await scene.branch(middle, 4n);
  await scene.appendWords(leaf, ['c5', 'c6']);
  return { root, middle, leaf: await scene.get(leaf.id), segments: await scene.segments(leaf) };
}

const WORDS = ['a0', 'a1', 'a2', 'a3', 'b4', 'c5', 'c6'];

describeStore('reading ranges of steps', (on) => {
  it('RD1, O2: every range of a lineage is the slice of the naive copy, with its owners', async () => {
    const scene = on.scene();
    const { root, middle, leaf, segments } = await threeDeep(scene);
    const owners = [root, root, root, root, middle, leaf, leaf].map(({ id, ref }) => ({ id, key: ref.key }));
    for (let from = 0; from <= 7; from += 1)
      for (let to = 0; to <= 8; to += 1) {
        const range = { from: BigInt(from), to: BigInt(to), ...MANY };
        const read = await scene.store.readSteps(scene.namespace, leaf.ref.tree, segments, range, 'FULL');
        expect(read.map(({ step }) => wordOf(step))).toEqual(WORDS.slice(from, to));
        expect(read.map(({ owner }) => owner)).toEqual(owners.slice(from, to));
        expect(read.map(({ step }) => Number(step.stepNumber))).toEqual(WORDS.map((_, i) => i).slice(from, to));
      }
  });

  it('RD1: pages of one step make what one page of all makes', async () => {
    const scene = on.scene();
    const { leaf } = await threeDeep(scene);
    expect(await scene.steps(leaf, 'FULL', 1)).toEqual(await scene.steps(leaf, 'FULL', 1000));
    expect(await scene.steps(leaf, 'FULL', 2)).toEqual(await scene.steps(leaf, 'FULL', 1000));
  });

  it('RD3: a page ends early when its bytes are full, but holds at least one step', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const text = 'x'.repeat(100_000);
    await scene.append(
      made,
      Array.from({ length: 10 }, (_, i) => newStep(BigInt(i), { infoJson: JSON.stringify(text) })),
    );
    const segments = await scene.segments(made);
    const read = async (maxBytes: number, from = 0n, view: StepView = 'FULL') => {
      const range = { from, to: 10n, maxSteps: 1000, maxBytes };
      return scene.store.readSteps(scene.namespace, made.ref.tree, segments, range, view);
    };
    expect(await read(1)).toHaveLength(1);
    expect(await read(1, 9n)).toHaveLength(1);
    const some = await read(350_000);
    expect(some.length).toBeGreaterThanOrEqual(2);
    expect(some.length).toBeLessThanOrEqual(4);
    expect(await read(350_000, 9n)).toHaveLength(1);
    expect(await read(2_000_000)).toHaveLength(10);
  });

  it('RD3: what is counted is bytes, not characters', async () => {
    const scene = on.scene();
    const made = await scene.create({ taskId: 'wide' });
    const infoJson = JSON.stringify('中'.repeat(100_000));
    await scene.append(
      made,
      Array.from({ length: 4 }, (_, i) => newStep(BigInt(i), { infoJson })),
    );
    const range = { from: 0n, to: 4n, maxSteps: 1000, maxBytes: 700_000 };
    const segments = await scene.segments(made);
    const read = await scene.store.readSteps(scene.namespace, made.ref.tree, segments, range, 'FULL');
    expect(read).toHaveLength(2);
    const page = { limit: 100, maxBytes: 700_000, after: undefined };
    const of = { taskId: 'wide' };
    const sort = { by: 'NUMBER', descending: false } as const;
    expect(await scene.store.listSteps(scene.namespace, { of }, sort, page, 'FULL')).toHaveLength(2);
  });

  it('RD3: bytes are counted along the lineage, also behind branch points of far longer parents', async () => {
    const scene = on.scene();
    const text = JSON.stringify('x'.repeat(50_000));
    const fat = (n: number) => newStep(BigInt(n), { infoJson: text });
    const root = await scene.create();
    await scene.append(
      root,
      Array.from({ length: 8 }, (_, i) => fat(i)),
    );
    const child = await scene.branch(root, 1n);
    await scene.append(child, [fat(2), fat(3), wordStep(4n, 'thin'), fat(5)]);
    const pages: number[] = [];
    const segments = await scene.segments(child);
    for (let from = 0n; from < 6n; ) {
      const range = { from, to: 6n, maxSteps: 1000, maxBytes: 110_000 };
      const page = await scene.store.readSteps(scene.namespace, root.ref.tree, segments, range, 'FULL');
      pages.push(page.length);
      from = (page.at(-1) as OwnedStep).step.stepNumber + 1n;
    }
    expect(pages.reduce((sum, n) => sum + n, 0)).toBe(6);
    expect(Math.max(...pages)).toBeLessThanOrEqual(3);
    expect(Math.max(...pages)).toBeGreaterThanOrEqual(2);
  });

  it('FM7: BASIC leaves out actions, observations, info and metadata, and nothing else', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('s');
    const step = newStep(0n, {
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

  it('RD1: a lineage of two hundred segments is read in order', async () => {
    const scene = on.scene();
    let last = await scene.createWith(['0']);
    const words = ['0'];
    for (let depth = 1; depth <= 200; depth += 1) {
      last = await scene.branch(last, BigInt(depth - 1));
      await scene.append(last, [wordStep(BigInt(depth), `${depth}`)]);
      words.push(`${depth}`);
    }
    expect(await scene.words(last)).toEqual(words);
    const read = await scene.store.readOutlines(scene.namespace, last.ref.tree, await scene.segments(last), 150n, 10);
    expect(read.map(({ stepNumber }) => Number(stepNumber))).toEqual([
      150, 151, 152, 153, 154, 155, 156, 157, 158, 159,
    ]);
  });

  it('RD1: steps deleted meanwhile are missing, never an error and never another step', async () => {
    const scene = on.scene();
    const { root, leaf, segments } = await threeDeep(scene);
    await scene.delete(root, 'CASCADE');
    const range = { from: 0n, to: 7n, ...MANY };
    expect(await scene.store.readSteps(scene.namespace, leaf.ref.tree, segments, range, 'FULL')).toEqual([]);
    expect(await scene.store.readOutlines(scene.namespace, leaf.ref.tree, segments, 0n, 100)).toEqual([]);
    expect(await scene.store.findCheckpoint(scene.namespace, leaf.ref.tree, segments, 7n, [])).toBeUndefined();
    expect(await scene.store.getLineage(scene.namespace, leaf.ref)).toEqual([]);
  });

  it('RD5: outlines hold numbers, rewards and content digests, from any number on, at most so many', async () => {
    const scene = on.scene();
    const root = await scene.create();
    const steps = [0.5, undefined, Number.NaN, -Infinity].map((reward, i) => wordStep(BigInt(i), `${i}`, { reward }));
    await scene.append(root, steps);
    const child = await scene.branch(root, 1n);
    await scene.append(child, [wordStep(2n, 'other', { reward: 7 })]);
    const outline = async (trajectory: Trajectory, from: bigint, limit: number) =>
      scene.store.readOutlines(scene.namespace, root.ref.tree, await scene.segments(trajectory), from, limit);
    expect(await outline(root, 0n, 100)).toEqual(
      steps.map(({ stepNumber, reward, contentDigest }) => ({ stepNumber, reward, contentDigest })),
    );
    expect((await outline(child, 1n, 100)).map(({ reward }) => reward)).toEqual([undefined, 7]);
    expect(await outline(root, 1n, 2)).toHaveLength(2);
    expect(await outline(root, 4n, 2)).toEqual([]);
  });
});

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
    const { leaf, segments } = await threeDeep(scene);
    return { leaf, of: { tree: leaf.ref.tree, segments } };
  }

  it('RD4: of a lineage, inherited ones included, in both orders of number', async () => {
    const scene = on.scene();
    const { of } = await lineage(scene);
    expect(words(await list(scene, { of }))).toEqual(WORDS);
    expect(words(await list(scene, { of }, { by: 'NUMBER', descending: true }))).toEqual([...WORDS].reverse());
  });

  it('RD4: of a task, own steps of all its trajectories only, by number, then in order of making', async () => {
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

  it('RD4: steps of a deleted trajectory of the task that only live on for its branches are not listed', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a0', 'a1'], { taskId: 'T' });
    const child = await scene.branch(root, 0n);
    await scene.appendWords(child, ['b1']);
    await scene.delete(root, 'KEEP_SHARED');
    expect(words(await list(scene, { of: { taskId: 'T' } }))).toEqual(['b1']);
  });

  /** Six steps whose rewards are everything that a reward can be, over a branch point. */
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
    return { tree: root.ref.tree, segments: await scene.segments(child) };
  }

  it('RD4, W11: by reward, missing and NaN last either way, page by page too', async () => {
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

  it('RD4, W11: reward bounds are both included, and neither NaN nor missing ever match', async () => {
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

  it('RD4: by time of commit, whichever way, page by page too', async () => {
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

  it('RD4: steps of one commit have one time, and pages by time still lose none', async () => {
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

  it('RD4: rewards 0 and -0 are one place in the order, and pages by reward lose none of them', async () => {
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

  it('RD4: filters: terminal or truncated, and having a state, of a name or of any', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('s');
    const steps: NewStep[] = [
      wordStep(0n, 'plain'),
      wordStep(1n, 'terminated', { terminated: true }),
      wordStep(2n, 'truncated', { truncated: true }),
      wordStep(3n, 'env', { states: [stateRef(state)] }),
      wordStep(4n, 'agent', { states: [stateRef(state, 'agent')], terminated: true }),
      wordStep(5n, 'both', { states: [stateRef(state, 'agent'), stateRef(state, 'env')] }),
    ];
    await scene.append(made, steps, { states: [state] });
    const of = { tree: made.ref.tree, segments: await scene.segments(made) };
    expect(words(await list(scene, { of, terminalOnly: true }))).toEqual(['terminated', 'truncated', 'agent']);
    expect(words(await list(scene, { of, terminalOnly: false }))).toHaveLength(6);
    expect(words(await list(scene, { of, hasState: true }))).toEqual(['env', 'agent', 'both']);
    expect(words(await list(scene, { of, hasState: 'env' }))).toEqual(['env', 'both']);
    expect(words(await list(scene, { of, hasState: 'ENV' }))).toEqual([]);
    expect(words(await list(scene, { of, hasState: 'agent', terminalOnly: true }))).toEqual(['agent']);
  });

  it('RD3: a page ends early when its bytes are full, but holds at least one step', async () => {
    const scene = on.scene();
    const made = await scene.create({ taskId: 'T' });
    const infoJson = JSON.stringify('x'.repeat(100_000));
    await scene.append(
      made,
      Array.from({ length: 8 }, (_, i) => newStep(BigInt(i), { infoJson })),
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
    expect(await list(scene, { of: { tree: made.ref.tree, segments: await scene.segments(made) } })).toEqual([]);
  });
});

describeStore('checkpoints and the states of a lineage', (on) => {
  interface Told {
    readonly segments: readonly Segment[];
    readonly tree: bigint;
    readonly states: readonly NewState[];
  }

  /** States at 0 (env), 2 (env, agent), 3 (agent) of a root, and at 5 (env) of a branch at 3; the root has another at 4. */
  async function checkpoints(scene: Scene): Promise<Told> {
    const states = Array.from({ length: 6 }, (_, i) => newState(`state ${i}`));
    const at = (n: number, ...names: string[]) =>
      newStep(BigInt(n), { states: names.map((name) => stateRef(states[n] as NewState, name)) });
    const root = await scene.create();
    await scene.append(root, [at(0, 'env'), at(1), at(2, 'agent', 'env'), at(3, 'agent'), at(4, 'env')], { states });
    const child = await scene.branch(root, 3n);
    await scene.append(child, [at(4), at(5, 'env')], { states });
    return { tree: root.ref.tree, segments: await scene.segments(child), states };
  }

  it('RD3: the latest step at or before a number that has a state, or all the states named', async () => {
    const scene = on.scene();
    const { tree, segments } = await checkpoints(scene);
    const find = async (atOrBefore: bigint, ...names: string[]) =>
      (await scene.store.findCheckpoint(scene.namespace, tree, segments, atOrBefore, names))?.step.stepNumber;
    expect(await find(2n ** 63n - 1n)).toBe(5n);
    expect(await find(5n)).toBe(5n);
    expect(await find(4n)).toBe(3n);
    expect(await find(4n, 'env')).toBe(2n);
    expect(await find(5n, 'agent')).toBe(3n);
    expect(await find(5n, 'env', 'agent')).toBe(2n);
    expect(await find(5n, 'agent', 'env')).toBe(2n);
    expect(await find(1n)).toBe(0n);
    expect(await find(1n, 'agent')).toBeUndefined();
    expect(await find(5n, 'ENV')).toBeUndefined();
    expect(await find(5n, 'env', 'other')).toBeUndefined();
  });

  it('RD3: the step found is whole, with its owner', async () => {
    const scene = on.scene();
    const { tree, segments, states } = await checkpoints(scene);
    const found = await scene.store.findCheckpoint(scene.namespace, tree, segments, 4n, ['env']);
    expect(found?.owner.key).toBe(segments[0]?.key);
    expect(found?.step.states).toEqual([
      stateRef(states[2] as NewState, 'agent'),
      stateRef(states[2] as NewState, 'env'),
    ]);
  });

  it('RD3: without any state there is no checkpoint', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const segments = await scene.segments(made);
    expect(await scene.store.findCheckpoint(scene.namespace, made.ref.tree, segments, 9n, [])).toBeUndefined();
  });

  it('S5: the states of one name come in order of step, across branch points, from a number on, at most so many', async () => {
    const scene = on.scene();
    const { tree, segments, states } = await checkpoints(scene);
    const read = (name: string, from = 0n, limit = 100) =>
      scene.store.listStepStates(scene.namespace, tree, segments, name, from, limit);
    const env = await read('env');
    expect(env.map(({ stepNumber }) => stepNumber)).toEqual([0n, 2n, 5n]);
    expect(env.map(({ state }) => state)).toEqual([0, 2, 5].map((n) => stateRef(states[n] as NewState)));
    expect(env.map(({ owner }) => owner.key)).toEqual([segments[0]?.key, segments[0]?.key, segments[1]?.key]);
    expect((await read('agent')).map(({ stepNumber }) => stepNumber)).toEqual([2n, 3n]);
    expect((await read('env', 1n)).map(({ stepNumber }) => stepNumber)).toEqual([2n, 5n]);
    expect((await read('env', 2n, 1)).map(({ stepNumber }) => stepNumber)).toEqual([2n]);
    expect((await read('env', 3n, 1)).map(({ stepNumber }) => stepNumber)).toEqual([5n]);
    expect(await read('env', 6n)).toEqual([]);
    expect(await read('Env')).toEqual([]);
  });
});
