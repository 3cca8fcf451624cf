import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import type { StateRef, Step } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { makeStep, newState, smallRef, stateRef, textAction } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { putState, readWhole, refusalOf, type Scene } from './scene.ts';
import { countRows } from './sql.ts';
import { expectVerified } from './verified.ts';

const KIB = 1024;

describeStore('pruned states', (on) => {
  const large = (seed: number) => newState(`${seed} `.repeat(5 * KIB));
  const small = (seed: number) => newState(`small ${seed}`);
  /** Steps 0 to `count` - 1, with a large state `env` and a small state `agent` each. */
  const stepsOf = (count: number) => {
    const states = Array.from({ length: count }, (_, i) => large(i));
    const steps = states.map((state, i) =>
      makeStep(BigInt(i), { states: [smallRef(small(i), 'agent'), stateRef(state)], reward: i }),
    );
    return { steps, states };
  };
  const createWith = async (scene: Scene, count: number): Promise<Trajectory> => {
    const made = await scene.create();
    const { steps, states } = stepsOf(count);
    await scene.append(made, steps, { states });
    return scene.get(made.id);
  };
  const prune = (
    scene: Scene,
    of: Trajectory,
    numbers: readonly number[],
    names = ['env', 'agent'],
    types: string[] = [],
  ) =>
    scene.store.pruneStates(
      scene.namespace,
      of.ref,
      numbers.map((number) => ({ stepNumber: BigInt(number), names, mediaTypes: types })),
    );
  const listed = async (scene: Scene, of: Trajectory, name: string) => {
    const lineage = await scene.lineage(of);
    const found = await scene.store.listStepStates(scene.namespace, of.ref.tree, lineage, {
      name,
      from: 0n,
      limit: 99,
    });
    return found.map(({ stepNumber }) => Number(stepNumber));
  };
  const checkpoint = async (scene: Scene, of: Trajectory, names: readonly string[]) => {
    const lineage = await scene.lineage(of);
    const found = await scene.store.findCheckpoint(scene.namespace, of.ref.tree, lineage, 99n, names);
    return found?.step.stepNumber;
  };
  const withState = async (scene: Scene, of: Trajectory, hasState: string | true) => {
    const where = { of: { tree: of.ref.tree, lineage: await scene.lineage(of) }, hasState };
    const order = { by: 'NUMBER', descending: false } as const;
    const page = { limit: 99, after: undefined, maxBytes: 1e6 };
    const { steps: found } = await scene.store.listSteps(scene.namespace, where, order, page, 'BASIC');
    return found.map(({ step }) => Number(step.stepNumber));
  };
  const attach = (
    scene: Scene,
    to: Trajectory,
    stepNumber: bigint,
    name: string,
    { digest, data }: ReturnType<typeof newState>,
  ) => {
    const fence = { trajectoryId: to.id, uid: undefined, writerEpoch: undefined };
    const mediaType = 'application/octet-stream';
    return scene.store.attachState(scene.caller, { ...fence, stepNumber, name, digest, mediaType, data });
  };
  const prunedOf = (steps: readonly { readonly step: Step }[]) =>
    steps.map(({ step }) => step.states.filter(({ prunedTime }) => prunedTime !== undefined).map(({ name }) => name));
  const withoutTime = ({ prunedTime: _, data: __, ...state }: StateRef) => state;

  for (const rest of [false, true]) {
    const form = rest ? 'a merged row' : 'a row as it was appended';
    it(`S13: states are removed from ${form}: steps stay, reads skip them, and the last reference frees the state`, async () => {
      const scene = on.scene();
      const made = await createWith(scene, 6);
      const branch = await scene.branch(made, 4n);
      if (rest) expect(await scene.store.mergeSteps([{ ref: made.ref, rest }])).toEqual([]);
      const before = await scene.steps(made);
      const whole = await scene.store.readOutlines(scene.namespace, made.ref.tree, await scene.lineage(made), 0n, 99);
      await prune(scene, made, [1, 2, 5]);
      await prune(scene, made, [3], ['agent']);
      const after = await scene.steps(made);
      expect(prunedOf(after)).toEqual([[], ['agent', 'env'], ['agent', 'env'], ['agent'], [], ['agent', 'env']]);
      expect(after.map(({ step }) => ({ ...step, states: step.states.map(withoutTime) }))).toEqual(
        before.map(({ step }) => ({ ...step, states: step.states.map(withoutTime) })),
      );
      expect(await listed(scene, made, 'env')).toEqual([0, 3, 4]);
      expect(await listed(scene, branch, 'agent')).toEqual([0, 4]);
      expect(await withState(scene, made, true)).toEqual([0, 3, 4]);
      expect(await withState(scene, branch, 'agent')).toEqual([0, 4]);
      expect([await checkpoint(scene, made, []), await checkpoint(scene, made, ['env'])]).toEqual([4n, 4n]);
      expect(await scene.store.readOutlines(scene.namespace, made.ref.tree, await scene.lineage(made), 0n, 99)).toEqual(
        whole,
      );
      await scene.store.collectStates(24, 500);
      expect(await countRows(on.sql, scene.namespace)).toMatchObject({ state_refs: 3 });
      expect(await scene.store.findStates(scene.namespace, [large(1).digest, large(0).digest], false)).toEqual([
        { digest: large(0).digest, size: large(0).data.length },
      ]);
      expect(await readWhole(scene.store, scene.namespace, large(3).digest)).toEqual(Buffer.from(large(3).data));
      await expectVerified(on.store);
    });
  }

  it('S13, W6: a pruned step is the same step: a replay is a duplicate, and another state is a conflict', async () => {
    const scene = on.scene();
    const made = await createWith(scene, 2);
    await prune(scene, made, [0, 1]);
    const { steps, states } = stepsOf(2);
    expect(await scene.append(made, steps, { states })).toMatchObject({ duplicates: 2 });
    expect(await listed(scene, made, 'env')).toEqual([]);
    const other = makeStep(1n, { states: [smallRef(small(7), 'agent')], reward: 1 });
    expect(await refusalOf(scene.append(made, [other]))).toMatchObject({ reason: 'STEP_CONFLICT' });
    await expectVerified(on.store);
  });

  it('S13, W10: the same bytes can be attached again, small or large, also after a merge and again after that', async () => {
    const scene = on.scene();
    const made = await createWith(scene, 3);
    for (const round of [1, 2]) {
      await prune(scene, made, [1]);
      expect(await listed(scene, made, 'env'), `round ${round}`).toEqual([0, 2]);
      expect(await refusalOf(attach(scene, made, 1n, 'agent', small(9)))).toMatchObject({ reason: 'STATE_CONFLICT' });
      expect(await attach(scene, made, 1n, 'agent', small(1))).toMatchObject({ duplicate: false });
      expect(await attach(scene, made, 1n, 'env', large(1))).toMatchObject({ duplicate: false });
      expect(await attach(scene, made, 1n, 'env', large(1))).toMatchObject({ duplicate: true });
      expect(await listed(scene, made, 'env')).toEqual([0, 1, 2]);
      expect(await listed(scene, made, 'agent')).toEqual([0, 1, 2]);
      expect(prunedOf(await scene.steps(made))).toEqual([[], [], []]);
      expect((await scene.steps(made)).map(({ step }) => step.states.length)).toEqual([2, 2, 2]);
      const place = { tree: made.ref.tree, owner: made.ref.key, stepNumber: 1n };
      const found = await scene.store.readSmallStates(scene.namespace, place, ['agent', 'env']);
      expect([...found].map(([name, data]) => [name, Buffer.from(data).toString()])).toEqual([['agent', 'small 1']]);
      expect(await scene.store.mergeSteps([{ ref: made.ref, rest: true }])).toEqual([]);
      await expectVerified(on.store);
    }
  });

  it('S13: an attached state is removed too, and contents by their media type', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const [picture, page] = [large(1), large(2)];
    for (const { data } of [picture, page]) await putState(scene.store, scene.namespace, data);
    const content = (state: typeof picture, mediaType: string) =>
      textAction('', { content: { kind: 'state' as const, digest: state.digest, mediaType, size: 0 } });
    await scene.append(made, [
      makeStep(0n, {
        actions: [content(picture, 'image/png'), content(picture, 'image/webp'), content(page, 'text/html')],
      }),
      makeStep(1n, { actions: [content(picture, 'image/png')] }),
    ]);
    await attach(scene, made, 0n, 'later', small(1));
    await attach(scene, made, 1n, 'later', large(3));
    await prune(scene, made, [0, 1], ['later'], ['image/png', 'text/html']);
    const steps = await scene.steps(made);
    expect(prunedOf(steps)).toEqual([['later'], ['later']]);
    const contents = steps.map(({ step }) =>
      step.actions.map(({ content: each }) => each?.kind === 'state' && each.prunedTime !== undefined),
    );
    expect(contents).toEqual([[true, false, true], [true]]);
    expect(await countRows(on.sql, scene.namespace)).toMatchObject({ state_refs: 1 });
    // The two that were put are kept for their retention time, as long as nothing renews them.
    await scene.store.collectStates(24, 500);
    const digests = [picture, page, large(3)].map(({ digest }) => digest);
    const found = await scene.store.findStates(scene.namespace, digests, false);
    expect(found.map(({ digest }) => digest)).toEqual([picture.digest, page.digest]);
    await expectVerified(on.store);
  });

  it('S13: nothing happens to steps that do not exist, to names that a step does not have, and to deleted trajectories', async () => {
    const scene = on.scene();
    const made = await createWith(scene, 2);
    const before = await scene.steps(made);
    await prune(scene, made, [0, 7], ['none'], ['image/png']);
    expect(await scene.steps(made)).toEqual(before);
    await scene.delete(made);
    await prune(scene, made, [0, 1]);
    expect(await countRows(on.sql, scene.namespace)).toMatchObject({ segments: 0, state_refs: 0 });
  });

  it('S13: a damaged row stays as it is, and the others are pruned', async () => {
    const scene = on.scene();
    const made = await scene.create();
    for (const i of [0, 1, 2]) {
      const state = large(i);
      await scene.append(made, [makeStep(BigInt(i), { states: [stateRef(state)] })], { states: [state] });
    }
    const damaged = `namespace = '${scene.namespace}' and first_step_number = 1`;
    const [row] = await on.sql.rows(`select checksum from segments where ${damaged}`);
    await on.sql.rows(`update segments set checksum = 0 where ${damaged} returning 1 as n`);
    await prune(scene, made, [0, 1, 2]);
    expect(await listed(scene, made, 'env').catch(({ reason }) => reason)).toBe('STEP_CORRUPT');
    await on.sql.rows(`update segments set checksum = ${String(row?.checksum)} where ${damaged} returning 1 as n`);
    expect(await listed(scene, made, 'env')).toEqual([1]);
    await expectVerified(on.store);
  });

  it('S13: prunes, merges, attaches and appends at the same time lose nothing', async () => {
    const scene = on.scene();
    const made = await createWith(scene, 20);
    const numbers = Array.from({ length: 20 }, (_, i) => i);
    const even = numbers.filter((each) => each % 2 === 0);
    await Promise.all([
      prune(scene, made, even, ['env']),
      prune(scene, made, even, ['agent']),
      scene.store.mergeSteps([{ ref: made.ref, rest: true }]),
      ...numbers.map((each) => attach(scene, made, BigInt(each), 'later', small(each))),
      scene.append(made, [makeStep(20n, { states: [smallRef(small(20), 'agent')] })]),
    ]);
    expect(await listed(scene, made, 'env')).toEqual(numbers.filter((each) => each % 2 === 1));
    expect(await listed(scene, made, 'agent')).toEqual([...numbers.filter((each) => each % 2 === 1), 20]);
    expect(await listed(scene, made, 'later')).toEqual(numbers);
    await expectVerified(on.store);
  });

  it('S13: a step of more than 960 KiB keeps its states, and still fits into a message', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const text = 'x'.repeat(970 * KIB);
    const states = [smallRef(small(0), 'agent')];
    await scene.append(made, [makeStep(0n, { states, actions: [textAction(text)] }), makeStep(1n, { states })]);
    await prune(scene, made, [0, 1]);
    expect(await listed(scene, made, 'agent')).toEqual([0]);
    await expectVerified(on.store);
  });

  it('S13: the bytes of small states are really removed from the row', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const bytes = Buffer.from(
      Array.from({ length: LIMITS.smallStateBytes - 1 }, (_, i) => (i * 7919 + (i >> 3)) % 251),
    );
    const states = [smallRef(newState(bytes))];
    await scene.append(made, [makeStep(0n, { states }), makeStep(1n, { states })]);
    const usage = async () => {
      const [row] = await on.sql.rows(
        `select octet_length(states) as bytes from segments where namespace = '${scene.namespace}'`,
      );
      return Number(row?.bytes);
    };
    expect(await usage()).toBe(2 * LIMITS.smallStateBytes);
    await prune(scene, made, [0], ['env']);
    expect(await usage()).toBe(LIMITS.smallStateBytes + 1);
    await prune(scene, made, [1], ['env']);
    expect(await usage()).toBe(2);
  });
});
