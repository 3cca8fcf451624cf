import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { claimed, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';

describeStore('claims', (on) => {
  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    return { scene, ...(await scene.place()) };
  };

  it('Q1, Q2: a claim returns everything a worker needs, equal to what later reads return', async () => {
    const { scene, run, stage } = await fresh();
    await scene.task('open-settings', 12n);
    const validators = [
      await scene.validator('open-settings', 'state'),
      await scene.validator('open-settings', 'shot'),
    ];
    const [id = ''] = await scene.queue(stage, 1, {
      groupNumber: 7n,
      number: 3n,
      taskId: 'open-settings',
      labels: new Map([['split', 'train']]),
      inputJson: '{"seed":1}',
      metadataJson: '{"a":1}',
      modelUri: 's3://weights/1',
      priority: 5,
    });
    const before = await scene.rollout(id);
    const claim = await scene.claimOne({ workerId: 'w-1', leaseMs: 30_000 });
    expect(claim.rollout).toMatchObject({
      id,
      run: { id: run.id },
      stage: { id: stage.id },
      group: { number: 7n },
      number: 3n,
      taskId: 'open-settings',
      status: 'INITIALIZING',
      attempt: 1,
      workerId: 'w-1',
      trajectoryId: claim.trajectory.id,
      inputJson: '{"seed":1}',
      revision: before.revision + 1n,
    });
    expect(claim.rollout.leaseEndTime).toBe(claim.rollout.updateTime + 30_000_000_000n);
    expect(claim.task).toMatchObject({ id: 'open-settings', maxTurns: 12n });
    expect(claim.maxTurns).toBe(12n);
    expect([...claim.task!.validators.values()].map(({ id: each }) => each).sort()).toEqual(validators.sort());
    expect(claim.trajectory).toMatchObject({
      name: 'rollout 7/3 attempt 1',
      status: 'RUNNING',
      nextStepNumber: 0n,
      writerEpoch: 0n,
      taskId: 'open-settings',
      runId: run.id,
      experimentId: run.experiment.id,
    });
    const { rollout, attempts } = await scene.record(id);
    expect(rollout).toEqual(claim.rollout);
    expect(await scene.get(claim.trajectory.id)).toEqual(claim.trajectory);
    expect(attempts).toEqual([
      {
        number: 1,
        trajectoryId: claim.trajectory.id,
        status: 'INITIALIZING',
        message: '',
        workerId: 'w-1',
        claimTime: rollout.updateTime,
        startTime: undefined,
        endTime: undefined,
        result: undefined,
        validations: [],
        override: undefined,
        success: undefined,
        reward: undefined,
        metrics: new Map(),
        timings: new Map(),
        environmentIds: [],
      },
    ]);
  });

  it('L5: a claim is recorded in the histories of the rollout and of its trajectory', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1);
    const claim = await scene.claimOne();
    expect(await scene.history('ROLLOUT', { id })).toMatchObject([
      { ordinal: 0n, oldStatus: undefined, newStatus: 'PENDING', actor: 'tester' },
      { ordinal: 1n, oldStatus: 'PENDING', newStatus: 'INITIALIZING', actor: 'tester' },
    ]);
    expect(await scene.history('TRAJECTORY', claim.trajectory)).toMatchObject([{ ordinal: 0n, newStatus: 'RUNNING' }]);
  });

  it('Q1: a worker appends to the trajectory of its claim like to any other, and the rollout shows its turns and reward', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne();
    await scene.open(claim.trajectory);
    const steps = [wordStep(0n, 'root'), wordStep(1n, 'a', { reward: 1.5 }), wordStep(2n, 'b', { reward: -0.5 })];
    await scene.append(claim.trajectory, steps, { writerEpoch: 1n });
    expect(await scene.rollout(claim.rollout.id)).toMatchObject({ turns: 2n, reward: 1 });
    await scene.append(claim.trajectory, [wordStep(3n, 'c')], { writerEpoch: 1n });
    expect(await scene.rollout(claim.rollout.id)).toMatchObject({ turns: 3n, reward: 1 });
  });

  it('Q5: higher priority is claimed first, then the oldest, across all stages', async () => {
    const { scene, run, stage } = await fresh();
    const other = await scene.stage(run, { kind: 'EVAL', number: 0n, status: 'RUNNING' });
    const a = await scene.queue(stage, 2, { priority: 1 });
    const b = await scene.queue(other, 2, { priority: 2 });
    const c = await scene.queue(stage, 2, { groupNumber: 1n, priority: 2 });
    const d = await scene.queue(other, 2, { groupNumber: 1n });
    const expected = [...b, ...c, ...a, ...d];
    const first = await scene.claims({ count: 3 });
    const second = await scene.claims({ count: 10 });
    expect([...first, ...second].map(({ rollout }) => rollout.id)).toEqual(expected);
    expect(first).toHaveLength(3);
  });

  it('Q5: a change of the priority moves a rollout in the queue', async () => {
    const { scene, stage } = await fresh();
    const [a = '', b = '', c = ''] = await scene.queue(stage, 3);
    await scene.store.updateRollout(scene.caller, c, undefined, { priority: 9 });
    const claims = await scene.claims({ count: 3 });
    expect(claims.map(({ rollout }) => rollout.id)).toEqual([c, a, b]);
  });

  it('filters by run, stage, tasks, labels and priority are combined with AND', async () => {
    const { scene, run, stage } = await fresh();
    const other = await scene.place();
    await scene.task('t1');
    await scene.task('t2');
    const [plain = ''] = await scene.queue(stage, 1);
    const [t1 = ''] = await scene.queue(stage, 1, { groupNumber: 1n, taskId: 't1' });
    const labels = new Map([
      ['gpu', 'a'],
      ['x', 'y'],
    ]);
    const [t2 = ''] = await scene.queue(stage, 1, { groupNumber: 2n, taskId: 't2', labels, priority: 4 });
    const [elsewhere = ''] = await scene.queue(other.stage, 1);
    const ids = async (fields: Parameters<typeof scene.claims>[0]) => {
      const claims = await scene.claims({ count: 9, ...fields });
      for (const claim of claims) await scene.release(tokenOf(claim));
      return claims.map(({ rollout }) => rollout.id);
    };
    for (const id of [plain, t1, t2, elsewhere]) {
      await scene.store.updateRollout(scene.caller, id, undefined, { maxAttempts: 100 });
    }
    expect(await ids({ runId: run.id })).toEqual([t2, plain, t1]);
    expect(await ids({ stageId: other.stage.id })).toEqual([elsewhere]);
    expect(await ids({ taskIds: ['t1'] })).toEqual([t1]);
    expect(await ids({ taskIds: ['t1', 't2', 'unknown'] })).toEqual([t2, t1]);
    expect(await ids({ taskIds: ['unknown'] })).toEqual([]);
    expect(await ids({ labels: new Map([['gpu', 'a']]) })).toEqual([t2]);
    expect(await ids({ labels: new Map([...labels, ['z', '']]) })).toEqual([]);
    expect(await ids({ minPriority: 4 })).toEqual([t2]);
    expect(await ids({ minPriority: 5 })).toEqual([]);
    expect(await ids({ runId: run.id, taskIds: ['t2'], labels, minPriority: 1 })).toEqual([t2]);
  });

  it('N1: rollouts of another namespace are not claimed, and no answer reveals them', async () => {
    const { scene, run, stage } = await fresh();
    await scene.queue(stage, 1);
    const stranger = new RolloutScene(on.store);
    expect(await stranger.claims({ count: 5 })).toEqual([]);
    expect((await refusalOf(stranger.claims({ runId: run.id }))).reason).toBe('RUN_NOT_FOUND');
    expect((await refusalOf(stranger.claims({ stageId: stage.id }))).reason).toBe('STAGE_NOT_FOUND');
  });

  it('a request with an unknown run, or an unknown stage of a run, is refused without effect on others', async () => {
    const { scene, run, stage } = await fresh();
    const other = await scene.place();
    await scene.queue(stage, 2);
    const outcomes = await scene.store.claimRollouts([
      scene.request({ runId: randomUUID() }),
      scene.request({ runId: run.id }),
      scene.request({ stageId: randomUUID() }),
      scene.request({ runId: other.run.id, stageId: stage.id }),
      scene.request({ stageId: stage.id }),
    ]);
    expect(outcomes).toMatchObject([
      { kind: 'refused', error: { reason: 'RUN_NOT_FOUND' } },
      { kind: 'claimed', claims: [{}] },
      { kind: 'refused', error: { reason: 'STAGE_NOT_FOUND' } },
      { kind: 'refused', error: { reason: 'STAGE_NOT_FOUND' } },
      { kind: 'claimed', claims: [{}] },
    ]);
  });

  it('Q4: rollouts of a paused run, or a terminal run or stage, are skipped', async () => {
    const { scene, run, stage } = await fresh();
    const other = await scene.place();
    const [id = ''] = await scene.queue(stage, 1, { maxAttempts: 9 });
    const [second = ''] = await scene.queue(other.stage, 1);
    const nextOf = async (place: { readonly runId: string } | { readonly stageId: string }) => {
      const [outcome] = await scene.store.claimRollouts([scene.request(place)]);
      const { claims, drained } = claimed(outcome);
      for (const claim of claims) await scene.release(tokenOf(claim));
      return { ids: claims.map(({ rollout }) => rollout.id), drained };
    };
    const next = async () => {
      const found = await nextOf({ runId: run.id });
      expect(await nextOf({ stageId: stage.id })).toEqual(found);
      return found;
    };
    await scene.move(run, 'pause');
    expect(await next()).toEqual({ ids: [], drained: false });
    await scene.move(run, 'resume');
    expect(await next()).toEqual({ ids: [id], drained: false });
    await scene.store.moveStage(scene.caller, stage.id, 'cancel', {
      message: '',
      metadataJson: '',
      phase: undefined,
      resultJson: '',
    });
    expect(await next()).toEqual({ ids: [], drained: true });
    await scene.store.moveStage(scene.caller, stage.id, 'reopen', {
      message: '',
      metadataJson: '',
      phase: undefined,
      resultJson: '',
    });
    expect(await next()).toEqual({ ids: [id], drained: false });
    await scene.move(run, 'fail');
    expect(await next()).toEqual({ ids: [], drained: true });
    expect((await scene.claimOne()).rollout.id).toBe(second);
  });

  it('several claim requests in one transaction are served in order of arrival, and no rollout is claimed twice', async () => {
    const { scene, run, stage } = await fresh();
    const ids = await scene.queue(stage, 10);
    const outcomes = await scene.store.claimRollouts([
      scene.request({ count: 3, workerId: 'a', leaseMs: 5000 }),
      scene.request({ runId: run.id, count: 3, workerId: 'b' }),
      scene.request({ count: 2, workerId: 'c' }),
      scene.request({ stageId: stage.id, count: 4, workerId: 'd' }),
      scene.request({ workerId: 'e' }),
    ]);
    const of = outcomes.map((outcome) => claimed(outcome).claims);
    const claimedIds = of.flat().map(({ rollout }) => rollout.id);
    expect(new Set(claimedIds).size).toBe(10);
    expect([...claimedIds].sort()).toEqual([...ids].sort());
    expect(of.map((claims) => claims.length)).toEqual([3, 3, 2, 1, 1]);
    for (const [i, worker] of ['a', 'b', 'c', 'd', 'e'].entries()) {
      for (const { rollout } of of[i]!) expect(rollout.workerId).toBe(worker);
    }
    expect(of[0]?.map(({ rollout }) => rollout.id)).toEqual(ids.slice(0, 3));
    for (const claim of of.flat()) expect(await scene.rollout(claim.rollout.id)).toEqual(claim.rollout);
  });

  it('the maximum of turns comes from the rollout, else from the task, else from the plan', async () => {
    const scene = new RolloutScene(on.store);
    const stagePlan = { kind: 'TRAIN_STEP', stages: 1, groupsPerStage: 1, groupSize: 1, maxTurns: 20, substeps: 0 };
    const plan = { stagePlans: [stagePlan], concurrency: 1 } as const;
    const run = await scene.makeRun({ status: 'RUNNING', plan: plan as never });
    const stage = await scene.stage(run, { status: 'RUNNING' });
    await scene.task('with', 12n);
    await scene.task('without');
    await scene.queue(stage, 1, { taskId: 'with', maxTurns: 3n });
    await scene.queue(stage, 1, { groupNumber: 1n, taskId: 'with' });
    await scene.queue(stage, 1, { groupNumber: 2n, taskId: 'without' });
    await scene.queue(stage, 1, { groupNumber: 3n });
    expect((await scene.claims({ count: 9 })).map(({ maxTurns }) => maxTurns)).toEqual([3n, 12n, 20n, 20n]);
  });

  it('B4: rollouts of a deleted run are not claimed', async () => {
    const { scene, run, stage } = await fresh();
    await scene.queue(stage, 2);
    await scene.store.deleteRun(scene.namespace, run.id, 'REFUSE', false);
    expect(await scene.claims({ count: 5 })).toEqual([]);
    expect((await refusalOf(scene.claims({ runId: run.id }))).reason).toBe('RUN_NOT_FOUND');
  });
});
