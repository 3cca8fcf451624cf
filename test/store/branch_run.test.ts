import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { Run } from '../../src/domain/run.ts';
import { sha256 } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RunScene, substepPlan } from './run_scene.ts';
import { refusalOf } from './scene.ts';

const PLAN = substepPlan(10, 4);

function key() {
  return { rpc: 'BranchRun', requestId: randomUUID(), requestDigest: sha256('r') };
}

describeStore('branching runs', (on) => {
  const scene = () => new RunScene(on.store);

  it('M4, B1: creates run and main trajectory together, which share steps 0 to n; the source is unchanged', async () => {
    const here = scene();
    const source = await here.makeRunWith(['a', 'b', 'c'], { name: 'base', plan: PLAN, heartbeatTimeoutMs: 7000 });
    const labels = new Map([['gain', '2']]);
    const made = await here.branchOff(source, 1n, { name: 'hot', labels, status: 'RUNNING' });
    const { run, mainTrajectory } = made;
    expect(made.created).toBe(true);
    expect(run).toMatchObject({
      name: 'hot',
      number: 2n,
      description: 'Branched from base at step 1',
      tree: source.tree,
      parent: { key: source.key, id: source.id, branchPoint: 1n },
      experiment: source.experiment,
      labels,
      plan: PLAN,
      heartbeatTimeoutMs: 7000,
      failWhenStale: false,
      status: 'RUNNING',
      startTime: run.createTime,
      mainTrajectory: { id: mainTrajectory?.id, nextStepNumber: 2n },
    });
    expect(mainTrajectory).toMatchObject({
      name: 'hot',
      labels,
      runId: run.id,
      experimentId: source.experiment.id,
      parent: { id: source.mainTrajectory?.id, branchPoint: 1n },
      nextStepNumber: 2n,
    });
    expect(await here.words(mainTrajectory as { id: string })).toEqual(['a', 'b']);
    expect(await here.run(run.id)).toEqual(run);
    expect(await here.run(source.id)).toEqual(source);
    expect(await here.history('RUN', run)).toMatchObject([{ oldStatus: undefined, newStatus: 'RUNNING' }]);
  });

  it('M4: the effective config is that of the parent, without removed keys, merged with the overrides; the request is kept as sent', async () => {
    const here = scene();
    const { id } = await here.experiment({ defaultConfigJson: '{"lr": 1, "a": {"x": 1, "y": 2}, "keep": 1.50}' });
    const source = await here.makeRunWith(['s'], { experiment: { id }, configJson: '{"lr": 2}' });
    const overrides = '{ "a": {"x": null},  "lr": 3e0 }';
    const { run } = await here.branchOff(source, 0n, { configJson: overrides, removedConfigPaths: ['/a/y'] });
    expect(run).toMatchObject({ configOverridesJson: overrides, removedConfigPaths: ['/a/y'] });
    expect(run.configJson).toBe('{"lr":3e0,"a":{"x":null},"keep":1.50}');
    const { run: child } = await here.branchOff(run, 0n, { configJson: '{"lr": null}', removedConfigPaths: ['/a/x'] });
    expect(child.configJson).toBe('{"lr":null,"a":{},"keep":1.50}');
    const { run: same } = await here.branchOff(run, 0n);
    expect(same).toMatchObject({ configJson: run.configJson, configOverridesJson: '', removedConfigPaths: [] });
    expect(await here.run(run.id)).toEqual(run);
  });

  it('M4: a removed path without a key in the effective config of the parent is refused with its index, and nothing is created', async () => {
    const here = scene();
    const { id } = await here.experiment({ defaultConfigJson: '{"lr": 1, "seed": 2}' });
    const source = await here.makeRunWith(['s'], { experiment: { id }, removedConfigPaths: ['/lr'] });
    const refused = await refusalOf(here.branchOff(source, 0n, { removedConfigPaths: ['/seed', '/lr'] }));
    const field = 'removed_config_paths[1]';
    const description = expect.stringContaining("the parent run's effective config");
    expect(refused).toMatchObject({ reason: 'INVALID_REQUEST', violations: [{ field, description }] });
    expect(await here.runNames()).toHaveLength(1);
  });

  it('M4: values that the request sets replace values of the parent; labels and metadata are not inherited', async () => {
    const here = scene();
    const source = await here.makeRunWith(['a'], {
      plan: PLAN,
      labels: new Map([['a', '1']]),
      metadataJson: '{"a":1}',
      failWhenStale: true,
    });
    const plan = substepPlan(2, 2);
    const { run } = await here.branchOff(source, 0n, { plan, description: 'mine', heartbeatTimeoutMs: 1000 });
    expect(run).toMatchObject({
      plan,
      description: 'mine',
      heartbeatTimeoutMs: 1000,
      metadataJson: '',
      failWhenStale: false,
    });
    expect(run.labels.size).toBe(0);
  });

  it('B1: the branch point may be a tag of the main trajectory, and may be an inherited step', async () => {
    const here = scene();
    const source = await here.makeRunWith(['a', 'b', 'c']);
    await here.store.setTag(here.namespace, source.mainTrajectory?.id ?? '', 'best', 1n, undefined);
    const { run, mainTrajectory } = await here.branchOff(source, 'best');
    expect(run.parent?.branchPoint).toBe(1n);
    const deeper = await here.branchOff(run, 0n);
    expect(deeper.run.parent).toEqual({ key: run.key, id: run.id, branchPoint: 0n });
    // The trajectory of the source owns step 0, whichever run was named.
    expect(deeper.mainTrajectory?.parent).toMatchObject({ id: source.mainTrajectory?.id, branchPoint: 0n });
    expect(deeper.run.tree).toEqual(source.tree);
    const none = here.branchOff({ id: run.id }, 'best');
    expect(await refusalOf(none)).toMatchObject({
      reason: 'TAG_NOT_FOUND',
      metadata: { trajectory_id: mainTrajectory?.id },
    });
  });

  it('B1: a branch point that is not on the path of the run is refused, and nothing is created', async () => {
    const here = scene();
    const source = await here.makeRunWith(['a', 'b']);
    expect(await refusalOf(here.branchOff(source, 2n))).toMatchObject({
      reason: 'BRANCH_POINT_BEYOND_END',
      metadata: { step_number: '2', next_step_number: '2' },
    });
    const { run } = await here.branchOff(source, 0n);
    expect((await refusalOf(here.branchOff(run, 1n))).reason).toBe('BRANCH_POINT_BEYOND_END');
    expect(await here.runNames()).toEqual(['run-2', 'run-1']);
  });

  it('M4: a run whose main trajectory is missing or deleted cannot be branched', async () => {
    const here = scene();
    const bare = await here.makeRun();
    expect(await refusalOf(here.branchOff(bare, 0n))).toMatchObject({
      reason: 'NO_MAIN_TRAJECTORY',
      metadata: { run_id: bare.id },
    });
    const source = await here.makeRunWith(['a']);
    await here.delete({ id: source.mainTrajectory?.id ?? '' });
    expect((await refusalOf(here.branchOff(source, 0n))).reason).toBe('NO_MAIN_TRAJECTORY');
    expect((await refusalOf(here.branchOff({ id: randomUUID() }, 0n))).reason).toBe('RUN_NOT_FOUND');
  });

  it('names and ids that are in use are refused, of runs and of trajectories', async () => {
    const here = scene();
    const source = await here.makeRunWith(['a'], { name: 'one' });
    const trajectoryId = source.mainTrajectory?.id ?? '';
    expect(await refusalOf(here.branchOff(source, 0n, { name: 'one' }))).toMatchObject({
      reason: 'RUN_EXISTS',
      metadata: { run: 'one', run_id: source.id },
    });
    expect((await refusalOf(here.branchOff(source, 0n, { id: source.id }))).reason).toBe('RUN_EXISTS');
    expect((await refusalOf(here.branchOff(source, 0n, { trajectoryId }))).reason).toBe('TRAJECTORY_EXISTS');
    expect(await here.runNames()).toEqual(['one']);
    expect((await here.branchOff(source, 0n)).run.number).toBe(2n);
  });

  it('ID1: a repeated request returns the same branch in its current state, however many arrive concurrently', async () => {
    const here = scene();
    const source = await here.makeRunWith(['a']);
    const used = key();
    const made = await Promise.all(Array.from({ length: 20 }, () => here.branchOff(source, 0n, {}, used)));
    expect(new Set(made.map(({ run }) => run.id)).size).toBe(1);
    expect(made.filter(({ created }) => created)).toHaveLength(1);
    const { run, mainTrajectory } = made[0] as (typeof made)[number];
    await here.appendWords(mainTrajectory as NonNullable<typeof mainTrajectory>, ['x']);
    expect(await here.branchOff(source, 0n, {}, used)).toMatchObject({
      created: false,
      run: { id: run.id, mainTrajectory: { nextStepNumber: 2n } },
      mainTrajectory: { nextStepNumber: 2n },
    });
    expect(await here.runNames({ parentId: source.id })).toEqual(['run-2']);
  });

  it('a plain branch of a trajectory belongs to its run and experiment, and is not a run', async () => {
    const here = scene();
    const source = await here.makeRunWith(['a']);
    const branch = await here.branch({ id: source.mainTrajectory?.id ?? '' }, 0n);
    expect(branch).toMatchObject({ runId: source.id, experimentId: source.experiment.id });
    expect(await here.runNames()).toEqual(['run-1']);
  });

  it('O2: while twenty calls branch a run, its main trajectory accepts steps and its verbs succeed', async () => {
    const here = scene();
    const source = await here.makeRunWith(['0']);
    const main = await here.get(source.mainTrajectory?.id ?? '');
    await Promise.all([
      ...Array.from({ length: 20 }, () => here.branchOff(source, 0n)),
      here.move(source, 'start'),
      (async () => {
        for (let n = 1; n <= 20; n += 1) await here.appendWords(main, [`${n}`]);
      })(),
    ]);
    expect((await here.run(source.id)).mainTrajectory?.nextStepNumber).toBe(21n);
    expect(await here.runs({ parentId: source.id })).toHaveLength(20);
  });

  it('a tree of runs lists parents before their branches, at any depth, in pages', async () => {
    const here = scene();
    const root = await here.makeRunWith(['0'], { name: '0', configJson: '{"a":1}' });
    const other = await here.makeRunWith(['0'], { name: 'other' });
    let deepest = root;
    for (let depth = 1; depth <= 30; depth += 1) {
      const { run, mainTrajectory } = await here.branchOff(deepest, BigInt(depth - 1), { name: `${depth}` });
      await here.appendWords(mainTrajectory as NonNullable<typeof mainTrajectory>, ['x']);
      deepest = run;
    }
    await here.branchOff(root, 0n, { name: 'late' });
    const treeOf = async (run: Run, limit: number, after?: bigint) =>
      (await here.store.listRunTree(here.namespace, run.id, { limit, after })) ?? [];
    const all = await treeOf(deepest, 1000);
    expect(all.map(({ name }) => name)).toEqual([...Array.from({ length: 31 }, (_, i) => `${i}`), 'late']);
    const seen = new Set<bigint>();
    for (const { key: row, parent } of all) {
      if (parent !== undefined) expect(seen).toContain(parent.key);
      seen.add(row);
    }
    expect(all[0]).toMatchObject({ configJson: '', mainTrajectory: { nextStepNumber: 1n } });
    const page = await treeOf(deepest, 2, all[9]?.key);
    expect(page).toEqual(all.slice(10, 12));
    const rest = await treeOf(other, 9);
    expect(rest.map(({ name }) => name)).toEqual(['other']);
    // Each row has its own names, whichever run the tree was requested for.
    expect(all.map(({ experiment, tree }) => [experiment, tree])).toEqual(all.map(() => [root.experiment, root.tree]));
  });
});
