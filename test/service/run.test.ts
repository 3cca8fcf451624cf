import { randomUUID } from 'node:crypto';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { ReadMetricsRequestSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { NewMetricPoint } from '../../src/domain/metric.ts';
import { metricMethods } from '../../src/service/run/metric.ts';
import { findRun } from '../../src/stream/find.ts';
import { newExperiment, RunScene, runMove, SILENT } from '../store/run_scene.ts';
import { refusalOf } from '../store/scene.ts';
import { callOf } from '../support/parts_call.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { all, describeApp } from './on_app.ts';
import { collect, servicesOf } from './services.ts';

const ROOT = { stepNumber: 0n, actions: [{ content: { text: 'root' } }] };

describeApp('creating runs', (on) => {
  it('ID1: a repeated request with one request id returns the same run in its current state', async () => {
    const { app, caller, rpc } = on.scene();
    const request = { mainTrajectory: { root: ROOT }, requestId: 'r' };
    const first = await rpc.createRun(request);
    const runId = first.run!.id;
    await app.store.moveRun(caller, runId, runMove('start'));
    const again = await rpc.createRun(request);
    expect(again).toMatchObject({ created: false, run: { id: runId, status: Status.RUNNING, number: 1n } });
    expect(again.mainTrajectory?.id).toBe(first.mainTrajectory?.id);
    expect((await refusalOf(rpc.createRun({ ...request, name: 'other' }))).reason).toBe('REQUEST_ID_REUSED');
    const branched = await rpc.branchRun({ runId, stepNumber: 0n, requestId: 'r' });
    expect(branched.run?.number).toBe(2n); // another RPC, another scope
  });

  it('M4, C-33: a run that exists is returned with its end and its last checkpointed stage, from which to continue', async () => {
    const { caller, rpc } = on.scene();
    const scene = new RunScene(on.store, caller.namespace);
    const request = { name: 'resumed', ifExists: IfExists.RETURN_EXISTING };
    const { run, created } = await rpc.createRun({ ...request, mainTrajectory: { root: ROOT } });
    expect(created).toBe(true);
    for (const number of [1n, 2n, 3n]) {
      const { id } = await scene.stage(run!, { number, status: 'RUNNING' });
      await on.store.updateStage(caller.namespace, id, { modelCheckpointUri: `s3://${number}` });
      if (number < 3n) await on.store.moveStage(caller, id, 'complete', SILENT);
    }
    const found = await rpc.createRun(request);
    expect(found).toMatchObject({ created: false, run: { id: run?.id }, mainTrajectory: { nextStepNumber: 1n } });
    expect(found.resumeStage).toMatchObject({ kind: StageKind.TRAIN_STEP, number: 2n, modelCheckpointUri: 's3://2' });
  });

  it('runs without an experiment, or with this name, are in `default`, which is created once', async () => {
    const { app, caller, rpc } = on.scene();
    const made = [await rpc.createRun({}), await rpc.createRun({ experimentName: 'default', name: 'named' })];
    expect(made.map(({ run }) => [run?.experimentName, run?.number, run?.name])).toEqual([
      ['default', 1n, 'run-1'],
      ['default', 2n, 'named'],
    ]);
    const named = await app.store.getRun(caller.namespace, { name: 'named', experimentName: 'default' });
    expect(named?.id).toBe(made[1]!.run?.id);
    const missing = rpc.createRun({ experimentName: 'not made' });
    expect(await refusalOf(missing)).toMatchObject({
      reason: 'EXPERIMENT_NOT_FOUND',
      metadata: { experiment: 'not made' },
    });
  });
});

describeApp('listing runs', (on) => {
  it('lists each run once, newest first, with its own progress, in pages of any size', async () => {
    const { caller, rpc } = on.scene();
    const scene = new RunScene(on.store, caller.namespace);
    const names = Array.from({ length: 7 }, (_, i) => `run-${7 - i}`);
    for (let number = 1n; number <= 7n; number += 1n) {
      const run = await scene.makeRun();
      for (let i = 0n; i < number; i += 1n) await scene.stage(run, { number: i });
    }
    for (const pageSize of [1, 3, 7, 0]) {
      const found = await collect(async (page) => {
        const { runs, nextPageToken } = await rpc.listRuns(page);
        return [runs, nextPageToken];
      }, pageSize);
      expect(found.map(({ run }) => run?.name)).toEqual(names);
      expect(found.map(({ progress }) => progress?.kinds[0]?.created)).toEqual([7n, 6n, 5n, 4n, 3n, 2n, 1n]);
    }
  });

  it.each([1, 2, 0])('S-35: lists all trees of an experiment with parents first, in pages of %i', async (pageSize) => {
    const { caller, rpc } = on.scene();
    const scene = new RunScene(on.store, caller.namespace);
    const experiment = await scene.experiment();
    const place = { experiment: { id: experiment.id } };
    const one = await scene.makeRunWith(['a', 'b'], { name: 'one', ...place });
    const two = await scene.makeRunWith(['a'], { name: 'two', ...place });
    const left = (await scene.branchOff(one, 0n, { name: 'left' })).run;
    await scene.makeRun({ name: 'of another experiment' });
    await scene.branchOff(two, 0n, { name: 'of two' });
    await scene.branchOff(left, 0n, { name: 'leaf' });
    await rpc.deleteRun({ runId: (await scene.makeRun({ name: 'deleted', ...place })).id });
    const found = await collect(async (page) => {
      const { runs, nextPageToken } = await rpc.getRunTree({ experimentId: experiment.id, ...page });
      return [runs, nextPageToken];
    }, pageSize);
    expect(found.map(({ name, parentId, treeId }) => [name, parentId, treeId])).toEqual([
      ['one', '', one.id],
      ['two', '', two.id],
      ['left', one.id, one.id],
      ['of two', two.id, two.id],
      ['leaf', left.id, one.id],
    ]);
    const empty = await scene.experiment();
    expect((await rpc.getRunTree({ experimentId: empty.id })).runs).toEqual([]);
    expect((await refusalOf(rpc.getRunTree({ experimentId: one.id }))).reason).toBe('EXPERIMENT_NOT_FOUND');
  });
});

describeApp('CompareRuns', (on) => {
  it('RD5: a main trajectory that is deleted meanwhile causes an error; a run without one is compared by its config alone', async () => {
    let meanwhile: (() => Promise<unknown>) | undefined;
    const store = wrappedStore(on.store, {
      getTrajectory: async (...args) => {
        const change = meanwhile;
        meanwhile = undefined;
        await change?.();
        return on.store.getTrajectory(...args);
      },
    });
    const app = on.app({}, store);
    const scene = new RunScene(on.store);
    const run = (configJson: string) => scene.makeRunWith(['a'], { configJson });
    const [one, other] = [await run('{"lr":1,"deep":{"a":[1,2]}}'), await run('{"lr":1.0,"deep":{"a":[1]}}')];
    const { compareRuns } = servicesOf(app, scene.caller);
    const compare = () => compareRuns({ runIds: [one.id, other.id] });
    const differences = [{ path: '/deep/a', valueJson: '[1,2]', otherValueJson: '[1]' }];
    const { comparisons } = await compare();
    expect(comparisons).toMatchObject([{ configDifferences: differences, trajectories: { sharedSteps: 0n } }]);
    meanwhile = () => scene.delete(one.mainTrajectory!);
    expect((await refusalOf(compare())).reason).toBe('TRAJECTORY_DELETED');
    const [without] = (await compare()).comparisons;
    expect(without).toMatchObject({
      runId: other.id,
      configDifferences: differences,
      configDifferencesTruncated: false,
    });
    expect(without!.trajectories).toBeUndefined();
    await app.close();
  });
});

describeApp('deleting runs', (on) => {
  it('B4: a deleted run is not found at once, and its rows are purged soon, without waiting for maintenance', async () => {
    let purges = Promise.withResolvers<void>();
    const store = wrappedStore(on.store, {
      purgeDeleted: async (limit) => {
        const more = await on.store.purgeDeleted(limit);
        if (!more) purges.resolve();
        return more;
      },
    });
    const app = on.app({}, store);
    const scene = new RunScene(on.store);
    const { caller } = scene;
    const experiment = await scene.experiment();
    const run = await scene.makeRunWith(['a'], { experiment: { id: experiment.id } });
    const stage = await scene.stage(run);
    const rpc = servicesOf(app, caller);
    expect(await rpc.deleteRun({ runId: run.id })).toMatchObject({ deletedRuns: 1n, deletedTrajectories: 1n });
    expect((await refusalOf(findRun(app, caller, run.id))).reason).toBe('RUN_NOT_FOUND');
    expect(await app.store.getStage(caller.namespace, { id: stage.id })).toBe(undefined);
    expect(await scene.isThere(run.mainTrajectory!.id)).toBe(false);
    await purges.promise;
    // The id can be used again once the rows are purged.
    await scene.makeRun({ id: run.id, experiment: { id: experiment.id } });
    purges = Promise.withResolvers();
    const gone = await rpc.deleteExperiment({ experimentId: experiment.id });
    expect(gone).toMatchObject({ deletedRuns: 1n, deletedTrajectories: 0n });
    await purges.promise;
    await scene.experiment(newExperiment({ id: experiment.id, name: experiment.name }));
    await app.close();
  });
});

describeApp('ReadMetrics', (on) => {
  const points = (name: string, values: readonly number[], stageId?: string): NewMetricPoint[] =>
    values.map((value, i) => ({ name, metricStep: BigInt(i), value, stageId }));

  function read(
    { app, caller }: ReturnType<typeof on.scene>,
    runIds: string[],
    fields: Omit<MessageInitShape<typeof ReadMetricsRequestSchema>, '$typeName'> = {},
  ) {
    const request = create(ReadMetricsRequestSchema, { runIds, ...fields });
    return metricMethods.readMetrics.messages(request, callOf(app, caller));
  }

  it('a run that is deleted during the read causes an error, and never looks like one with fewer points', async () => {
    let meanwhile: (() => Promise<unknown>) | undefined;
    const store = wrappedStore(on.store, {
      measureSeries: async (...args) => {
        const measured = await on.store.measureSeries(...args);
        const change = meanwhile;
        meanwhile = undefined;
        await change?.();
        return measured;
      },
    });
    const app = on.app({}, store);
    const scene = on.scene(app);
    const { namespace } = scene.caller;
    const run = await new RunScene(on.store, namespace).makeRun();
    await on.store.logMetrics(namespace, run.id, points('a', [1, 2, 3]));
    meanwhile = () => on.store.deleteRun(namespace, run.id, 'REFUSE');
    expect((await refusalOf(all(read(scene, [run.id])))).reason).toBe('RUN_NOT_FOUND');
    const unknown = read(scene, [randomUUID()]);
    expect((await refusalOf(all(unknown))).reason).toBe('RUN_NOT_FOUND');
    await app.close();
  });
});
