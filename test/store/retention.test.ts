import { afterAll, expect, it } from 'vitest';
import type { Instant } from '../../src/domain/instant.ts';
import {
  addSizes,
  ENDED,
  NOTHING,
  type RetentionPart,
  type RetentionPolicy,
  type StatePolicy,
  type TrajectoryPolicy,
} from '../../src/domain/retention.ts';
import type { NewState } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { makeStep, newState, smallRef, stateRef, textAction } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { refusalOf, type Scene } from './scene.ts';
import { countRows } from './sql.ts';
import { stateOf, storedStates } from './state_chains.ts';
import { expectVerified } from './verified.ts';

const STATES: StatePolicy = {
  names: ['env', 'agent'],
  mediaTypes: [],
  keepLast: 0,
  keepEvery: 0n,
  olderThan: 0n,
  keepTagged: true,
  keepBranchPoints: true,
  keepTerminal: true,
};
const TRAJECTORIES: TrajectoryPolicy = {
  statuses: ENDED,
  labels: new Map(),
  keepLast: 0,
  olderThan: 0n,
  keepTagged: true,
  onBranches: 'KEEP_SHARED',
};

describeStore('retention', (on) => {
  afterAll(() => expectVerified(on.store));

  /** States of which each step has one that no other has: no two share bytes that could be stored once. */
  const large = (seed: number) => stateOf(seed * 7919, 20 * 1024);
  let seeds = 1;
  const createWith = async (scene: Scene, count: number): Promise<Trajectory> => {
    const made = await scene.create();
    await append(scene, made, 0, count);
    return scene.get(made.id);
  };
  const append = async (scene: Scene, to: Trajectory, from: number, count: number) => {
    const states: NewState[] = Array.from({ length: count }, () => large(seeds++));
    const steps = states.map((state, i) => {
      const agent = smallRef(newState(`${state.digest} `.repeat(20)), 'agent');
      return makeStep(BigInt(from + i), { states: [agent, stateRef(state)], actions: [textAction(`step ${i}`)] });
    });
    await scene.append(to, steps, { states });
  };
  const read = async (scene: Scene, policy: RetentionPolicy, apply: boolean, asOf?: Instant) => {
    const retention = await scene.store.retain(scene.namespace, policy, { asOf, apply });
    const parts: RetentionPart[] = [];
    for await (const part of retention.parts) parts.push(part);
    const size = parts.reduce((sum, part) => addSizes(sum, part.size), NOTHING);
    const pruned = parts.flatMap((part) => part.pruned.map((each) => [part.trajectoryId, each.stepNumber] as const));
    const pinned = parts.flatMap((part) =>
      part.pinned.map(({ stepNumber, pins }) => [part.trajectoryId, stepNumber, pins] as const),
    );
    const deleted = parts.flatMap(({ trajectoryId, deletedFrom }) =>
      deletedFrom === undefined ? [] : [[trajectoryId, deletedFrom] as const],
    );
    return { asOf: retention.asOf, size, pruned, pinned, deleted };
  };
  const keptOf = async (scene: Scene, of: Trajectory) =>
    (await scene.steps(of)).flatMap(({ step }) =>
      step.states.some(({ name, prunedTime }) => name === 'env' && prunedTime === undefined) ? [step.stepNumber] : [],
    );
  /** Stored bytes of states and steps in the namespace. */
  const stored = async (scene: Scene) => {
    for await (const _ of scene.store.verify());
    const usage = scene.store.measureUsage(scene.namespace, 'namespace');
    for (;;) {
      const { value, done } = await usage.next();
      if (done === true) return value.steps.stored + value.states.stored;
    }
  };

  it('S14: what ApplyRetention removes is what the plan listed, and a second time there is nothing to remove', async () => {
    const scene = on.scene();
    const made = await createWith(scene, 12);
    await scene.store.mergeSteps([{ ref: made.ref, rest: true }]);
    const branch = await scene.branch(made, 3n);
    await append(scene, branch, 4, 3);
    await scene.store.setTag(scene.namespace, made.id, 'best', 5n, -1n);
    // A tag on an inherited step pins the owner's step.
    await scene.store.setTag(scene.namespace, branch.id, 'begin', 1n, -1n);
    const policy = { states: { ...STATES, keepLast: 2, keepEvery: 4n } };
    const before = await stored(scene);
    const plan = await read(scene, policy, false);
    expect(plan.pinned).toEqual([
      [made.id, 1n, ['TAG']],
      [made.id, 3n, ['BRANCH']],
      [made.id, 5n, ['TAG']],
    ]);
    expect(plan.pruned).toEqual([2n, 6n, 7n, 9n].map((number) => [made.id, number]));
    // The branch keeps its last two, and step 4 is the fourth.
    await append(scene, branch, 7, 2);
    await append(scene, made, 12, 5);
    const applied = await read(scene, policy, true, plan.asOf);
    expect(applied).toMatchObject({ asOf: plan.asOf, pruned: plan.pruned, pinned: plan.pinned });
    expect(applied.size).toMatchObject({ states: 8n, logicalBytes: plan.size.logicalBytes, steps: 0n });
    expect(await keptOf(scene, made)).toEqual([0n, 1n, 3n, 4n, 5n, 8n, 10n, 11n, 12n, 13n, 14n, 15n, 16n]);
    expect((await read(scene, policy, true, plan.asOf)).size).toEqual(NOTHING);
    expect(before).toBeGreaterThan(plan.size.storedBytes);
  });

  it('S14: tags and branches that are made while a policy is applied pin their steps', async () => {
    const scene = on.scene();
    const root = await createWith(scene, 6);
    const branch = await scene.branch(root, 5n);
    await append(scene, branch, 6, 6);
    const leaf = await scene.branch(branch, 11n);
    const policy = { states: { ...STATES, keepLast: 1 } };
    const retention = await scene.store.retain(scene.namespace, policy, { apply: true });
    const parts = retention.parts[Symbol.asyncIterator]();
    const first = await parts.next();
    expect(first.value).toMatchObject({ trajectoryId: root.id, pinned: [] });
    // The pins of the tree are read by now: these come between selecting and removing.
    await scene.store.setTag(scene.namespace, branch.id, 'own', 6n, -1n);
    await scene.store.setTag(scene.namespace, leaf.id, 'inherited', 8n, -1n);
    // A tag on a step of another owner, and one of a parallel branch with the same number, pin nothing here.
    const other = await scene.branch(root, 4n);
    await append(scene, other, 5, 5);
    await scene.store.setTag(scene.namespace, other.id, 'parallel', 7n, -1n);
    await scene.branch(leaf, 9n);
    const second = await parts.next();
    expect(second.value).toMatchObject({
      trajectoryId: branch.id,
      pruned: [{ stepNumber: 7n }, { stepNumber: 10n }],
      pinned: [
        { stepNumber: 6n, pins: ['TAG'] },
        { stepNumber: 8n, pins: ['TAG'] },
        { stepNumber: 9n, pins: ['BRANCH'] },
      ],
      size: { states: 4n, logicalBytes: BigInt(2 * (20 * 1024 + 65 * 20)) },
    });
    expect(await parts.next()).toMatchObject({ done: true });
    expect(await keptOf(scene, branch)).toEqual([5n, 6n, 8n, 9n, 11n]);
  });

  it('S14: with include_tagged and include_branch_points, what is pinned meanwhile is removed too', async () => {
    const scene = on.scene();
    const root = await createWith(scene, 2);
    const branch = await scene.branch(root, 1n);
    await append(scene, branch, 2, 3);
    const policy = { states: { ...STATES, keepTagged: false, keepBranchPoints: false } };
    const parts = (await scene.store.retain(scene.namespace, policy, { apply: true })).parts[Symbol.asyncIterator]();
    await parts.next();
    await scene.store.setTag(scene.namespace, branch.id, 'own', 2n, -1n);
    await scene.branch(branch, 3n);
    expect((await parts.next()).value).toMatchObject({ trajectoryId: branch.id, pinned: [] });
    expect(await keptOf(scene, branch)).toEqual([]);
  });

  it('S14: the plan states logical bytes exactly, and stored bytes within a tenth', async () => {
    const scene = on.scene();
    const made = await createWith(scene, 20);
    await scene.store.mergeSteps([{ ref: made.ref, rest: true }]);
    const before = await stored(scene);
    const { size, asOf } = await read(scene, { states: STATES }, false);
    expect(size).toMatchObject({ trajectories: 0n, steps: 0n, states: 40n });
    expect(size.logicalBytes).toBe(BigInt(20 * (20 * 1024 + 65 * 20)));
    await read(scene, { states: STATES }, true, asOf);
    // States that came inline go at once.
    await scene.store.collectStates(24, 500);
    const freed = Number(before - (await stored(scene)));
    expect(Math.abs(freed - Number(size.storedBytes)) / freed).toBeLessThan(0.1);
    expect(await countRows(on.sql, scene.namespace)).toMatchObject({ states: 0, state_refs: 0 });
  });

  it.each([
    ['the last one stays', { keepLast: 1 }],
    ['every fifth stays', { keepEvery: 5n }],
    ['a tagged one stays', {}],
    ['the whole chain goes', { keepTagged: false }],
  ])('S14: stored bytes are within a tenth too if states that stay depend on removed ones (%s)', async (_, rules) => {
    const scene = on.scene();
    const made: Trajectory[] = [];
    for (let seed = 0; seed < 2; seed += 1) {
      const states = Array.from({ length: 24 }, (_, i) => stateOf(seed, 20 * 1024, [i, seed]));
      const to = await scene.create();
      const steps = states.map((state, i) => makeStep(BigInt(i), { states: [stateRef(state)] }));
      for (let i = 0; i < 24; i += 4) await scene.append(to, steps.slice(i, i + 4), { states: states.slice(i, i + 4) });
      await scene.store.setTag(scene.namespace, to.id, 'best', 12n, -1n);
      await scene.store.mergeSteps([{ ref: to.ref, rest: true }]);
      made.push(to);
    }
    const chains = [...(await storedStates(on.sql, scene.namespace)).values()];
    expect(chains.filter(({ base }) => base !== undefined).length, 'states are stored as changes').toBeGreaterThan(40);
    const before = await stored(scene);
    const policy = { states: { ...STATES, ...rules } };
    const { size, asOf } = await read(scene, policy, false);
    expect((await read(scene, policy, true, asOf)).size.storedBytes).toBe(size.storedBytes);
    while ((await scene.store.collectStates(24, 500)) > 0);
    const freed = Number(before - (await stored(scene)));
    const all = Number(before);
    expect(Math.abs(freed - Number(size.storedBytes)) / Math.max(Math.abs(freed), all / 10)).toBeLessThan(0.1);
    expect(await keptOf(scene, made[0]!)).not.toHaveLength(24);
  });

  it('S14: states that are older than a time are removed, and those of the run or the experiment only', async () => {
    const scene = new RolloutScene(on.store);
    const run = await scene.makeRun({ status: 'RUNNING' });
    const inRun = await scene.create({ runId: run.id });
    await append(scene, inRun, 0, 2);
    const outside = await createWith(scene, 2);
    const hour = 3_600_000_000_000n;
    expect((await read(scene, { states: { ...STATES, olderThan: hour } }, true)).pruned).toEqual([]);
    expect((await read(scene, { runId: run.id, states: STATES }, true)).pruned.length).toBe(2);
    expect(await keptOf(scene, outside)).toEqual([0n, 1n]);
    await append(scene, inRun, 2, 1);
    expect((await read(scene, { experimentId: run.experiment.id, states: STATES }, true)).pruned).toEqual([
      [inRun.id, 2n],
    ]);
    const later = { ...STATES, olderThan: hour };
    const { asOf } = await read(scene, { states: STATES }, false);
    expect((await read(scene, { states: later }, true, asOf + hour)).pruned.length).toBe(2);
    const nobody = '00000000-0000-4000-8000-000000000000';
    expect(await refusalOf(read(scene, { runId: nobody, states: STATES }, false))).toMatchObject({
      reason: 'RUN_NOT_FOUND',
    });
    expect(await refusalOf(read(scene, { experimentId: nobody, states: STATES }, true))).toMatchObject({
      reason: 'EXPERIMENT_NOT_FOUND',
    });
  });

  it('S14: nothing of the trajectory of a live rollout is removed', async () => {
    const scene = new RolloutScene(on.store);
    const { stage } = await scene.place();
    await scene.queue(stage, 1);
    const { id } = (await scene.claimOne()).trajectory;
    const live = await scene.get(id);
    await append(scene, live, Number(live.nextStepNumber), 3);
    const plan = await read(scene, { states: STATES }, true);
    expect([plan.pruned, plan.pinned.map(([, , pins]) => pins)]).toEqual([
      [],
      [['LIVE_ROLLOUT'], ['LIVE_ROLLOUT'], ['LIVE_ROLLOUT']],
    ]);
    const whole = { trajectories: { ...TRAJECTORIES, statuses: ['RUNNING', ...ENDED] } as const };
    expect((await read(scene, whole, true)).pinned).toContainEqual([id, undefined, ['LIVE_ROLLOUT']]);
    expect(await scene.isThere(id)).toBe(true);
  });

  it('S14: whole trajectories are deleted as planned: shared steps stay, and what is tagged', async () => {
    const scene = on.scene();
    const [made, other, tagged] = [await createWith(scene, 6), await createWith(scene, 2), await createWith(scene, 1)];
    const branch = await scene.branch(made, 2n);
    await append(scene, branch, 3, 2);
    const leaf = await scene.branch(branch, 3n);
    await scene.store.setTag(scene.namespace, tagged.id, 'best', 0n, -1n);
    for (const each of [made, other, tagged, branch]) await scene.seal(each);
    const plan = await read(scene, { trajectories: TRAJECTORIES }, false);
    expect(plan.deleted.sort()).toEqual(
      [
        [made.id, 3n],
        [branch.id, 4n],
        [other.id, 0n],
      ].sort(),
    );
    expect(plan.pinned).toEqual([[tagged.id, undefined, ['TAG']]]);
    expect(plan.size).toMatchObject({ trajectories: 3n, steps: 3n + 1n + 2n, states: 12n });
    const applied = await read(scene, { trajectories: TRAJECTORIES }, true, plan.asOf);
    expect([applied.deleted.sort(), applied.size.steps]).toEqual([plan.deleted, plan.size.steps]);
    expect((await scene.steps(leaf)).map(({ step }) => step.stepNumber)).toEqual([0n, 1n, 2n, 3n]);
    for (const each of [made, other, branch]) expect(await scene.isThere(each.id)).toBe(false);
    expect((await read(scene, { trajectories: TRAJECTORIES }, true)).size).toEqual(NOTHING);
    await scene.seal(leaf);
    // With the last branch, its hidden ancestors go too.
    const last = await read(scene, { trajectories: TRAJECTORIES }, false);
    expect(last.size).toMatchObject({ trajectories: 1n, steps: 4n });
    await read(scene, { trajectories: TRAJECTORIES }, true);
    expect(await countRows(on.sql, scene.namespace)).toMatchObject({ trajectories: 1 });
  });

  it('S14: REFUSE pins trajectories with branches, CASCADE deletes them too, and the newest ones can stay', async () => {
    const scene = on.scene();
    const made = await createWith(scene, 3);
    const branch = await scene.branch(made, 1n);
    await scene.seal(made);
    const refuse = { trajectories: { ...TRAJECTORIES, onBranches: 'REFUSE' } as const };
    expect(await read(scene, refuse, true)).toMatchObject({ deleted: [], pinned: [[made.id, undefined, ['BRANCH']]] });
    const newest = { trajectories: { ...TRAJECTORIES, keepLast: 1 } };
    expect((await read(scene, newest, true)).deleted).toEqual([]);
    const cascade = { trajectories: { ...TRAJECTORIES, onBranches: 'CASCADE' } as const };
    const { deleted, size } = await read(scene, cascade, true);
    expect(deleted.map(([id]) => id)).toEqual([branch.id, made.id]);
    expect(size).toMatchObject({ trajectories: 2n, steps: 3n });
    expect(await scene.isThere(branch.id)).toBe(false);
  });

  it('S14: a trajectory that is tagged, appended to or changed after it was selected stays, with its branches', async () => {
    const scene = on.scene();
    const root = await createWith(scene, 2);
    const old = { labels: new Map([['age', 'old']]) };
    const branchOf = async (of: Trajectory, at: bigint, fields = {}) => {
      const made = await scene.branch(of, at, fields);
      await append(scene, made, Number(at) + 1, 2);
      return scene.get(made.id);
    };
    // The newest branch is deleted first.
    const [parent, renamed, grown, tagged] = [
      await branchOf(root, 1n, old),
      await branchOf(root, 1n, old),
      await branchOf(root, 1n, old),
      await branchOf(root, 1n, old),
    ];
    const gone = await branchOf(root, 1n, old);
    const child = await branchOf(parent, 2n);
    const going = await branchOf(gone, 2n);
    const trajectories = { ...TRAJECTORIES, ...old, statuses: ['RUNNING'], onBranches: 'CASCADE' } as const;
    const { parts } = await scene.store.retain(scene.namespace, { trajectories }, { apply: true });
    expect((await parts.next()).value).toMatchObject({ trajectoryId: going.id, deletedFrom: 3n });
    // The tree was read before: these come between selecting and deleting.
    await scene.store.setTag(scene.namespace, tagged.id, 'late', 3n, -1n);
    await append(scene, grown, 4, 1);
    await scene.store.updateTrajectory(scene.namespace, renamed.id, { name: 'mine' });
    await scene.store.setTag(scene.namespace, child.id, 'late', 4n, -1n);
    const rest: RetentionPart[] = [];
    for await (const part of parts) rest.push(part);
    expect(rest).toMatchObject([
      { trajectoryId: gone.id, deletedFrom: 2n, pinned: [] },
      { trajectoryId: tagged.id, pinned: [{ pins: ['TAG'] }] },
      { trajectoryId: parent.id, pinned: [{ pins: ['TAG'] }] },
    ]);
    for (const each of [root, tagged, grown, renamed, parent, child]) expect(await scene.isThere(each.id)).toBe(true);
    for (const each of [gone, going]) expect(await scene.isThere(each.id)).toBe(false);
  });
});
