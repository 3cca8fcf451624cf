import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { runHint, trajectoryHint } from '../../src/domain/change.ts';
import type { Run } from '../../src/domain/run.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { BranchPolicy } from '../../src/store/contract/experiment.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { packed } from '../support/packed_steps.ts';
import { newPolicy } from '../support/retention_policies.ts';
import { makeStep, newState, stateRef, textObservation, wordStep } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { FURNISHED_TRAJECTORIES, furnishRollouts } from './furnish_rollouts.ts';
import { describeStore } from './on_store.ts';
import { newMain, RunScene, SILENT } from './run_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows, dumpNamespace } from './sql.ts';

const ALL = { limit: 1000, after: undefined };
const EVERYTHING = { from: undefined, to: undefined };

describeStore('deleting runs and experiments', (on) => {
  const scene = () => new RunScene(on.store);
  const reason = (call: Promise<unknown>) => refusalOf(call).then((error) => error.reason);
  const deleteRun = (here: RunScene, { id }: { readonly id: string }, policy: BranchPolicy = 'REFUSE') =>
    here.store.deleteRun(here.namespace, id, policy);
  const deleteExperiment = (here: RunScene, { id }: { readonly id: string }, policy: BranchPolicy = 'REFUSE') =>
    here.store.deleteExperiment(here.namespace, id, policy);
  const main = async (here: RunScene, { id }: { readonly id: string }): Promise<Trajectory> =>
    here.get((await here.run(id)).mainTrajectory?.id ?? '');
  const left = async (here: RunScene) =>
    Object.entries(await countRows(on.sql, here.namespace)).filter(([, count]) => count > 0);
  async function purgeAll(store: Store = on.store, limit = 100): Promise<number> {
    let rounds = 0;
    while (await store.purgeDeleted(limit)) rounds += 1;
    return rounds;
  }

  /** A run with rows in every table: steps, states, tags, stages, metrics, rollouts, histories. */
  async function furnish(here: RunScene, run: Run, trajectory: Trajectory): Promise<void> {
    const [inline, shot] = [newState(randomUUID().repeat(200)), newState(randomUUID().repeat(900))];
    const content = { kind: 'state', digest: shot.digest, mediaType: 'image/png', size: shot.data.length } as const;
    const { nextStepNumber } = await here.get(trajectory.id);
    await here.append(
      trajectory,
      [
        makeStep(nextStepNumber, { states: [stateRef(inline)] }),
        makeStep(nextStepNumber + 1n, { observations: [textObservation('', { content })] }),
      ],
      { states: [inline, shot] },
    );
    await here.store.setTag(here.namespace, trajectory.id, 'best', nextStepNumber, undefined);
    for (const kind of ['TRAIN_STEP', 'EVAL'] as const) {
      const stage = await here.stage(run, { kind });
      await here.store.moveStage(here.caller, stage.id, 'start', SILENT);
      await here.store.logMetrics(here.namespace, run.id, [
        { name: 'loss', metricStep: 1n, value: Number.NaN, stageId: stage.id },
        { name: 'loss', metricStep: 2n, value: 2, stageId: undefined },
      ]);
    }
    await here.move(run, 'start');
    await here.store.heartbeatRun(here.namespace, run.id);
    await here.store.createTrajectory(here.caller, {
      id: randomUUID(),
      uid: randomUUID(),
      name: '',
      labels: new Map(),
      metadataJson: '',
      taskId: '',
      runId: run.id,
      experimentId: undefined,
      scoredMetrics: ['score'],
      root: packed(wordStep(0n, 'side', { metrics: new Map([['score', 1]]) })),
      states: [],
    });
    await here.store.attachState(here.caller, {
      trajectoryId: trajectory.id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber: nextStepNumber,
      name: 'attached',
      digest: inline.digest,
      mediaType: '',
      data: undefined,
    });
    const big = new Uint8Array(600_000).map((_, i) => i * 7);
    const upload = here.store.putState(here.namespace);
    for (let at = 0; at < big.length; at += 256 * 1024) await upload.write(big.subarray(at, at + 256 * 1024));
    await upload.finish();
    await furnishRollouts(here, run);
    await here.store.setRetentionPolicy(here.namespace, newPolicy(`of/${run.id}`, { runId: run.id }));
  }

  it('B4, K-C9: a deleted run leaves no rows except idempotency keys, and states until they are collected', async () => {
    const here = scene();
    const bystander = await here.makeRunWith(['x', 'y']);
    await furnish(here, bystander, await main(here, bystander));
    const before = await dumpNamespace(on.sql, here.namespace);
    const counts = await countRows(on.sql, here.namespace);
    const key = { rpc: 'CreateRun', requestId: randomUUID(), requestDigest: 'd' };
    const { run } = await here.make({ mainTrajectory: newMain({ root: wordStep(0n, 'a') }) }, key);
    await furnish(here, run, await main(here, run));
    const branched = await here.branch(await main(here, run), 0n);
    await here.appendWords(branched, ['b']);
    const full = await countRows(on.sql, here.namespace);
    for (const [table, count] of Object.entries(full)) {
      // Rows that exist once in a namespace: states by their content, the catalogue by its names. Or after deletions,
      // and during imports.
      const once = ['state_uploads', 'experiments', 'state_chunks', 'tasks', 'validators'];
      if ([...once, 'deleted_trajectories', 'trajectory_imports'].includes(table)) continue;
      expect([table, count > (counts[table] ?? 0)]).toEqual([table, true]);
    }
    expect(await deleteRun(here, run)).toMatchObject({ runs: 1n, trajectories: 3n + FURNISHED_TRAJECTORIES });
    await purgeAll();
    await collectUnused(on.store);
    // The counter of the experiment has changed. States that were never referred to are collected with the rest.
    const rest = await countRows(on.sql, here.namespace);
    expect(rest).toEqual({ ...counts, requests: 1, states: 2, state_chunks: 0 });
    const same = (dump: string) =>
      dump.split('\n').filter((line) => !/^(states|state_chunks|requests|experiments) /.test(line));
    expect(same(await dumpNamespace(on.sql, here.namespace))).toEqual(same(before));
    expect(await reason(here.make({ mainTrajectory: newMain() }, key))).toBe('RUN_NOT_FOUND');
  });

  it('B4, K-S4: a deleted experiment leaves no rows except idempotency keys', async () => {
    const here = scene();
    const experiment = await here.experiment();
    const place = { id: experiment.id };
    const root = await here.makeRunWith(['a', 'b', 'c'], { experiment: place });
    await furnish(here, root, await main(here, root));
    const child = (await here.branchOff(root, 1n)).run;
    await furnish(here, child, await main(here, child));
    const grandchild = (await here.branchOff(child, 2n)).run;
    await furnish(here, grandchild, await main(here, grandchild));
    const loose = await here.createWith(['x', 'y'], { experimentId: experiment.id });
    await here.branch(loose, 1n);
    const outside = await here.makeRunWith(['z']);
    const deletion = await deleteExperiment(here, experiment);
    expect(deletion).toMatchObject({ runs: 3n, trajectories: 8n + 3n * FURNISHED_TRAJECTORIES });
    expect([...deletion.runKeys].sort()).toEqual([root.key, child.key, grandchild.key].sort());
    expect(deletion.trajectoryKeys).toContain(loose.ref.key);
    await purgeAll();
    await collectUnused(on.store);
    expect(await here.runs()).toMatchObject([{ id: outside.id }]);
    expect(await deleteRun(here, outside)).toMatchObject({ runs: 1n, trajectories: 1n });
    const other = outside.experiment;
    expect(await deleteExperiment(here, other)).toMatchObject({ runs: 0n, trajectories: 0n });
    await purgeAll();
    await collectUnused(on.store);
    // Tasks and validators belong to the namespace, not to the experiment.
    expect(await left(here)).toEqual([
      ['tasks', 1],
      ['validators', 1],
    ]);
  });

  it('B4: no call finds what was deleted, before the purge and after it', async () => {
    const here = scene();
    const experiment = await here.experiment({ name: 'e' });
    const run = await here.makeRunWith(['a', 'b'], { name: 'r', experiment: { id: experiment.id } });
    const trajectory = await main(here, run);
    const epoch = await here.open(trajectory);
    const stage = await here.stage(run);
    const point = { name: 'm', metricStep: 1n, value: 1, stageId: undefined };
    await here.store.logMetrics(here.namespace, run.id, [point]);
    const filter = { runs: [run.id], names: undefined, stage: undefined };
    const [series] = await here.store.listSeries(here.namespace, filter, 9, undefined);
    expect(series).toBeDefined();
    await deleteExperiment(here, experiment);
    const { store, namespace, caller } = here;
    const check = async () => {
      expect(await store.getRun(namespace, { id: run.id })).toBeUndefined();
      expect(await store.getRun(namespace, { name: 'r', experimentName: 'e' })).toBeUndefined();
      expect(await store.getExperiment(namespace, { id: experiment.id })).toBeUndefined();
      expect(await store.getExperiment(namespace, { name: 'e' })).toBeUndefined();
      expect(await store.getStage(namespace, { id: stage.id })).toBeUndefined();
      expect(await store.getTrajectory(namespace, trajectory.id)).toBeUndefined();
      expect(await store.readRunChanges(namespace, run.id, undefined, true)).toBeUndefined();
      expect(await here.runs()).toEqual([]);
      expect(await store.listExperiments(namespace, {}, ALL, 'BASIC')).toEqual([]);
      expect(await store.listTrajectories(namespace, {}, ALL)).toEqual([]);
      expect(await store.listTrajectories(namespace, { runId: run.id }, ALL)).toEqual([]);
      expect(await store.listTrajectories(namespace, { experimentId: experiment.id }, ALL)).toEqual([]);
      const callsOnDeleted: [string, Promise<unknown>][] = [
        ['RUN_NOT_FOUND', here.move(run, 'start')],
        ['RUN_NOT_FOUND', store.updateRun(namespace, run.id, { phase: 'x' })],
        ['RUN_NOT_FOUND', store.heartbeatRun(namespace, run.id)],
        ['RUN_NOT_FOUND', here.branchOff(run, 0n)],
        ['RUN_NOT_FOUND', here.stage(run)],
        ['RUN_NOT_FOUND', here.stage(run, { number: 77n })],
        ['RUN_NOT_FOUND', store.listStages(namespace, run.id, {}, ALL, 'BASIC')],
        ['RUN_NOT_FOUND', store.logMetrics(namespace, run.id, [point])],
        ['RUN_NOT_FOUND', store.listSeries(namespace, filter, 9, undefined)],
        ['RUN_NOT_FOUND', here.history('RUN', run)],
        ['RUN_NOT_FOUND', here.create({ runId: run.id })],
        ['EXPERIMENT_NOT_FOUND', here.create({ experimentId: experiment.id })],
        ['EXPERIMENT_NOT_FOUND', here.makeRun({ experiment: { id: experiment.id } })],
        ['EXPERIMENT_NOT_FOUND', store.updateExperiment(namespace, experiment.id, { name: 'x' })],
        ['STAGE_NOT_FOUND', store.updateStage(namespace, stage.id, { phase: 'x' })],
        ['STAGE_NOT_FOUND', store.moveStage(caller, stage.id, 'start', SILENT)],
        ['STAGE_NOT_FOUND', here.history('STAGE', stage)],
        ['TRAJECTORY_NOT_FOUND', here.append(trajectory, [wordStep(2n, 'c')], { writerEpoch: epoch })],
        ['TRAJECTORY_NOT_FOUND', here.open(trajectory)],
        ['TRAJECTORY_NOT_FOUND', here.history('TRAJECTORY', trajectory)],
        ['TRAJECTORY_NOT_FOUND', store.setTag(namespace, trajectory.id, 't', 0n, undefined)],
        ['TRAJECTORY_NOT_FOUND', store.deleteTrajectory(namespace, trajectory.id, 'CASCADE')],
        ['RUN_NOT_FOUND', deleteRun(here, run)],
        ['EXPERIMENT_NOT_FOUND', deleteExperiment(here, experiment, 'CASCADE')],
      ];
      const told = await Promise.all(callsOnDeleted.map(([, call]) => reason(call)));
      expect(told).toEqual(callsOnDeleted.map(([wanted]) => wanted));
    };
    await check();
    await purgeAll();
    await check();
    expect(await left(here)).toEqual([]);
  });

  it('B4: names can be used again at once; ids only after their rows were purged', async () => {
    const here = scene();
    const experiment = await here.experiment({ name: 'e' });
    const run = await here.makeRunWith(['a'], { name: 'r', experiment: { id: experiment.id } });
    await deleteRun(here, run);
    const again = await here.makeRun({ name: 'r', experiment: { id: experiment.id } });
    expect(again.number).toBe(2n);
    expect(await reason(here.makeRun({ id: run.id }))).toBe('RUN_EXISTS');
    await deleteExperiment(here, experiment);
    const second = await here.experiment({ name: 'e' });
    expect(await reason(here.experiment({ id: experiment.id }))).toBe('EXPERIMENT_EXISTS');
    await purgeAll();
    await here.makeRun({ id: run.id, experiment: { id: second.id } });
    expect((await here.experiment({ id: experiment.id })).runCount).toBe(0n);
  });

  it('B4: REFUSE fails where other runs branch off, names up to 20 of them, and hides nothing', async () => {
    const here = scene();
    const root = await here.makeRunWith(['a', 'b', 'c']);
    const one = (await here.branchOff(root, 0n)).run;
    const two = (await here.branchOff(one, 0n)).run;
    const before = await dumpNamespace(on.sql, here.namespace);
    const error = await refusalOf(deleteRun(here, root));
    expect(error.reason).toBe('HAS_BRANCHES');
    expect(error.metadata.branch_ids).toBe(`${one.id},${two.id}`);
    expect(await dumpNamespace(on.sql, here.namespace)).toBe(before);
    for (let i = 0; i < 23; i += 1) await here.branchOff(root, 1n);
    const many = await refusalOf(deleteRun(here, root));
    expect(many.metadata.branch_ids?.split(',')).toHaveLength(20);
    expect(many.message).toContain('and 5 more');
    expect(await deleteRun(here, two)).toMatchObject({ runs: 1n });
    // A branch that is deleted and not yet purged does not count.
    expect(await deleteRun(here, one)).toMatchObject({ runs: 1n });
  });

  it('B4: CASCADE deletes runs that branch off, transitively, with all their trajectories; siblings and parents stay', async () => {
    const here = scene();
    const root = await here.makeRunWith(['a', 'b', 'c']);
    const one = (await here.branchOff(root, 1n)).run;
    await here.appendWords(await main(here, one), ['d', 'e']);
    const deep = (await here.branchOff(one, 3n)).run;
    const side = await here.branch(await main(here, deep), 0n);
    const sibling = (await here.branchOff(root, 2n)).run;
    expect(await deleteRun(here, one, 'CASCADE')).toMatchObject({ runs: 2n, trajectories: 3n });
    expect(await here.isThere(side.id)).toBe(false);
    await purgeAll();
    expect((await here.runs()).map(({ id }) => id).sort()).toEqual([root.id, sibling.id].sort());
    expect(await here.words(await main(here, root))).toEqual(['a', 'b', 'c']);
    expect(await here.words(await main(here, sibling))).toEqual(['a', 'b', 'c']);
    expect(await countRows(on.sql, here.namespace)).toMatchObject({ trajectories: 2, runs: 2 });
    expect(await deleteRun(here, root, 'CASCADE')).toMatchObject({ runs: 2n, trajectories: 2n });
    await purgeAll();
    expect(await countRows(on.sql, here.namespace)).toMatchObject({ trajectories: 0, runs: 0, steps: 0 });
  });

  it('B4: a trajectory without a run that branches off counts as a branch too, and CASCADE deletes it', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a', 'b']);
    const stray = await here.branch(await main(here, run), 0n);
    await on.sql.rows(`update trajectories set run = null, experiment = null where key = ${stray.ref.key}`);
    const leaf = await here.branch(stray, 0n);
    const error = await refusalOf(deleteRun(here, run));
    expect(error).toMatchObject({ reason: 'HAS_BRANCHES', metadata: { branch_ids: `${stray.id},${leaf.id}` } });
    expect(await deleteRun(here, run, 'CASCADE')).toMatchObject({ runs: 1n, trajectories: 3n });
    await purgeAll();
    expect(await countRows(on.sql, here.namespace)).toMatchObject({ trajectories: 0, runs: 0, steps: 0 });
  });

  it('B2, B4: a hidden parent outside the run is trimmed, or purged with its last branch', async () => {
    const here = scene();
    const root = await here.makeRunWith(['a', 'b', 'c', 'd']);
    const trunk = await main(here, root);
    const [low, high] = [(await here.branchOff(root, 0n)).run, (await here.branchOff(root, 2n)).run];
    await here.delete(trunk, 'KEEP_SHARED');
    const steps = async () => Number((await countRows(on.sql, here.namespace)).steps);
    expect(await steps()).toBe(3);
    await deleteRun(here, high);
    await purgeAll();
    expect(await steps()).toBe(1);
    expect(await here.words(await main(here, low))).toEqual(['a']);
    await deleteRun(here, low);
    await purgeAll();
    expect(await countRows(on.sql, here.namespace)).toMatchObject({ trajectories: 0, steps: 0, runs: 1 });
  });

  it('B2, B4: hidden trajectories of a deleted run are purged with it; a run without a main trajectory is deleted like others', async () => {
    const here = scene();
    const root = await here.makeRunWith(['a', 'b']);
    const trunk = await main(here, root);
    await here.branch(trunk, 0n);
    await here.delete(trunk, 'KEEP_SHARED');
    expect(await deleteRun(here, root)).toMatchObject({ runs: 1n, trajectories: 1n });
    await purgeAll();
    const bare = await here.makeRunWith(['a']);
    await here.delete(await main(here, bare));
    expect(await deleteRun(here, bare)).toMatchObject({ runs: 1n, trajectories: 0n });
    await purgeAll();
    expect(await countRows(on.sql, here.namespace)).toMatchObject({ trajectories: 0, steps: 0, runs: 0 });
  });

  it('B2, B4: a branch that is being purged does not block the deletion of its parent, whose purge removes its rows too', async () => {
    const here = scene();
    const root = await here.makeRunWith(['a', 'b', 'c']);
    const trunk = await main(here, root);
    const branch = (await here.branchOff(root, 1n)).run;
    await here.branchOff(branch, 0n);
    await deleteRun(here, branch, 'CASCADE');
    expect(await here.delete(trunk, 'REFUSE')).toMatchObject({ purged: 1n, keptShared: false });
    expect(await countRows(on.sql, here.namespace)).toMatchObject({ trajectories: 0, steps: 0 });
    await purgeAll();
    expect(await countRows(on.sql, here.namespace)).toMatchObject({ runs: 1 });
  });

  it('B4: a purge runs in short batches, and continues after an interruption on a store that is opened again', async () => {
    const here = scene();
    const experiment = await here.experiment();
    const root = await here.makeRunWith([], { experiment: { id: experiment.id } });
    const trunk = await main(here, root);
    await here.append(
      trunk,
      Array.from({ length: 1000 }, (_, i) => wordStep(BigInt(i), 'x')),
    );
    const branch = (await here.branchOff(root, 750n)).run;
    await here.appendWords(await main(here, branch), ['y', 'z']);
    for (let i = 0; i < 30; i += 1) {
      const stage = await here.stage(root, { number: BigInt(i), status: 'RUNNING' });
      await here.store.moveStage(here.caller, stage.id, 'complete', SILENT);
    }
    await here.store.logMetrics(
      here.namespace,
      branch.id,
      Array.from({ length: 500 }, (_, i) => ({
        name: `m${i % 3}`,
        metricStep: BigInt(i),
        value: i,
        stageId: undefined,
      })),
    );
    const rows = async () => Object.values(await countRows(on.sql, here.namespace)).reduce((sum, n) => sum + n, 0);
    await deleteExperiment(here, experiment);
    let [before, batches] = [await rows(), 0];
    // Every few batches the store is closed, and another one continues.
    for (let more = true; more; ) {
      await on.reopen();
      for (let i = 0; more && i < 7; i += 1) {
        more = await on.store.purgeDeleted(100);
        const now = await rows();
        expect(before - now).toBeLessThanOrEqual(110);
        if (more) expect(now).toBeLessThan(before);
        before = now;
        batches += 1;
      }
    }
    expect(batches).toBeGreaterThan(14);
    expect(await left(here)).toEqual([]);
  });

  it('B4: a hundred trajectories, each a tree of its own, are purged in a few batches', async () => {
    const here = scene();
    const run = await here.makeRun();
    const made = await Promise.all(Array.from({ length: 100 }, () => here.create({ runId: run.id })));
    const steps = [wordStep(0n, 'a'), wordStep(1n, 'b')];
    await here.store.append(
      made.map((each) => here.batch(each, steps)),
      'bounded',
    );
    expect(await deleteRun(here, run)).toMatchObject({ trajectories: 100n });
    expect(await purgeAll(on.store, 200)).toBeLessThan(8);
    expect(await countRows(on.sql, here.namespace)).toMatchObject({ trajectories: 0, steps: 0, runs: 0 });
  });

  it('N1: runs and experiments of another namespace are not found', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a']);
    const before = await dumpNamespace(on.sql, here.namespace);
    expect(await reason(here.store.deleteRun('other', run.id, 'CASCADE'))).toBe('RUN_NOT_FOUND');
    expect(await reason(here.store.deleteExperiment('other', run.experiment.id, 'CASCADE'))).toBe(
      'EXPERIMENT_NOT_FOUND',
    );
    await purgeAll();
    expect(await dumpNamespace(on.sql, here.namespace)).toBe(before);
    expect(await here.store.measureSeries('other', [1n], EVERYTHING)).toEqual(new Map());
  });

  it('B4: followers and watchers of deleted resources are notified', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a']);
    const trajectory = await main(here, run);
    const told: unknown[] = [];
    const stop = here.store.onChange((hint) => told.push(hint));
    await deleteRun(here, run);
    stop();
    expect(told).toEqual(expect.arrayContaining([runHint(run.key), trajectoryHint(trajectory.ref.key)]));
  });
});
