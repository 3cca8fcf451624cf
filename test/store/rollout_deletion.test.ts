import { expect, it } from 'vitest';
import { wordStep } from '../support/steps.ts';
import { FURNISHED_TRAJECTORIES, furnishRollouts } from './furnish_rollouts.ts';
import { describeStore, describeStoreOn } from './on_store.ts';
import { claimed, newEnvironment, newGroup, RolloutScene, tokenOf } from './rollout_scene.ts';
import { SILENT } from './run_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows, waitingForLocks } from './sql.ts';

const ALL = { limit: 1000, after: undefined };

describeStore('deleting runs with rollouts', (on) => {
  const scene = () => new RolloutScene(on.store);
  const reason = (call: Promise<unknown>) => refusalOf(call).then((refusal) => refusal.reason);
  const deleteRun = (here: RolloutScene, { id }: { readonly id: string }, cancelLive = false) =>
    here.store.deleteRun(here.namespace, id, 'REFUSE', cancelLive);
  const purgeAll = async (limit = 100) => {
    let rounds = 0;
    while (await on.store.purgeDeleted(limit)) rounds += 1;
    return rounds;
  };
  /** The remaining rows of a namespace, except its experiments and catalogue, after everything was purged. */
  const left = async (here: RolloutScene) => {
    await purgeAll();
    const counts = Object.entries(await countRows(on.sql, here.namespace));
    return counts.filter(([table, count]) => count > 0 && !['experiments', 'tasks', 'validators'].includes(table));
  };

  it('B4: live rollouts make the deletion fail with their number, and nothing is hidden', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    await here.queue(stage, 5);
    const [a, b] = await here.claims({ count: 2 });
    expect(await refusalOf(deleteRun(here, run))).toMatchObject({
      reason: 'RUN_ACTIVE',
      metadata: { rollouts: '2' },
      message: expect.stringContaining('cancel_live'),
    });
    const experiment = here.store.deleteExperiment(here.namespace, run.experiment.id, 'CASCADE');
    expect(await reason(experiment)).toBe('RUN_ACTIVE');
    expect(await here.run(run.id)).toMatchObject({ status: 'RUNNING' });
    await here.start(a!);
    expect(await reason(deleteRun(here, run))).toBe('RUN_ACTIVE');
    await here.complete(a!);
    await here.release(tokenOf(b!));
    expect(await deleteRun(here, run)).toMatchObject({ runs: 1n, trajectories: 2n });
    expect(await left(here)).toEqual([]);
  });

  it('B4: with cancel_live the deletion proceeds, and later calls of the workers are refused', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    await here.queue(stage, 3);
    const [a, b] = await here.claims({ count: 2 });
    await here.append(a!.trajectory, [wordStep(0n, 'root')]);
    expect(await deleteRun(here, run, true)).toMatchObject({ runs: 1n, trajectories: 2n });
    for (const purged of [false, true]) {
      if (purged) await purgeAll();
      expect(await reason(here.append(a!.trajectory, [wordStep(1n, 'turn')]))).toBe('TRAJECTORY_NOT_FOUND');
      expect(await reason(here.complete(a!))).toBe('ROLLOUT_NOT_FOUND');
      expect(await reason(here.start(b!))).toBe('ROLLOUT_NOT_FOUND');
      expect(await reason(here.retry(tokenOf(b!)))).toBe('ROLLOUT_NOT_FOUND');
      expect(await here.heartbeat([tokenOf(a!)])).toMatchObject([{ kept: false, status: undefined }]);
      expect(await here.claims()).toEqual([]);
      expect(await reason(here.queue(stage, 1))).toBe('STAGE_NOT_FOUND');
      expect(await here.store.getRollout(here.namespace, a!.rollout.id)).toBeUndefined();
      expect(await here.store.getGroup(here.namespace, { id: a!.rollout.group.id })).toBeUndefined();
      expect(await reason(here.store.listGroups(here.namespace, stage.id, ALL, 'BASIC'))).toBe('STAGE_NOT_FOUND');
      expect(await reason(here.history('ROLLOUT', { id: a!.rollout.id }))).toBe('ROLLOUT_NOT_FOUND');
      const where = { since: undefined, allStages: true };
      expect((await here.store.readChangedGroups(here.namespace, run.key, where, ALL)).rows).toEqual([]);
      expect((await here.store.readChangedRollouts(here.namespace, run.key, where, ALL)).rows).toEqual([]);
    }
    expect(await left(here)).toEqual([]);
  });

  it('B4: CASCADE deletes runs whose rollouts started at its steps, and requires cancel_live for their live rollouts too', async () => {
    const here = scene();
    const source = await here.makeRunWith(['a', 'b', 'c']);
    const startFrom = { trajectoryId: source.mainTrajectory!.id, stepNumber: 1n };
    const { run, stage } = await here.place();
    await here.queue(stage, 1, { startFrom });
    const claim = await here.claimOne();
    const cascade = (cancelLive: boolean) => here.store.deleteRun(here.namespace, source.id, 'CASCADE', cancelLive);
    expect(await refusalOf(deleteRun(here, source))).toMatchObject({
      reason: 'HAS_BRANCHES',
      metadata: { branch_ids: run.id },
    });
    expect(await reason(cascade(false))).toBe('RUN_ACTIVE');
    expect(await here.isThere(claim.trajectory.id)).toBe(true);
    expect(await cascade(true)).toMatchObject({ runs: 2n, trajectories: 2n });
    expect(await left(here)).toEqual([]);
  });

  it('B4, K-C9: the purge runs in short batches, and leaves rows of others unchanged', async () => {
    const here = scene();
    await furnishRollouts(here, await here.makeRun({ status: 'RUNNING' }));
    const before = await countRows(on.sql, here.namespace);
    const deletedRun = await here.makeRun({ status: 'RUNNING' });
    await furnishRollouts(here, deletedRun);
    expect((await deleteRun(here, deletedRun)).trajectories).toBe(FURNISHED_TRAJECTORIES);
    expect(await purgeAll(3)).toBeGreaterThan(6);
    expect(await countRows(on.sql, here.namespace)).toEqual(before);
  });

  it('Q4, B4: claims that race with a deletion leave no rows', async () => {
    for (let round = 0; round < 2; round += 1) {
      const here = scene();
      const { run, stage } = await here.place();
      await here.queue(stage, 40);
      const claimers = Array.from({ length: 12 }, async (_, worker) => {
        const [place, refusal] =
          worker % 2 === 0 ? [{ runId: run.id }, 'RUN_NOT_FOUND'] : [{ stageId: stage.id }, 'STAGE_NOT_FOUND'];
        for (let i = 0; i < 4; i += 1) {
          const [outcome] = await here.store.claimRollouts([here.request({ ...place, count: 1 })]);
          if (outcome?.kind === 'refused') {
            expect(outcome.error).toMatchObject({ reason: refusal });
            return;
          }
          claimed(outcome);
        }
      });
      const makers = Array.from({ length: 4 }, (_, i) => orGone(here.queue(stage, 3, { groupNumber: BigInt(i + 1) })));
      const deletion = deleteRun(here, run, true);
      await Promise.all([...claimers, ...makers, deletion]);
      expect(await left(here)).toEqual([]);
    }
  });

  /** A call that arrives too late finds no stage. */
  const orGone = async (call: Promise<unknown>) => {
    try {
      await call;
    } catch (error) {
      expect(error).toMatchObject({ reason: 'STAGE_NOT_FOUND' });
    }
  };
});

describeStoreOn(['postgres'], 'a run that is being deleted while something of it is written', (on) => {
  it('B4, ID1: calls that arrive after the deletion get a NOT_FOUND error for the resource they name', async () => {
    const here = new RolloutScene(on.store);
    const { run, stage } = await here.place();
    await here.queue(stage, 1);
    const claim = await here.claimOne();
    await here.fail(claim);
    const calls: Record<string, () => Promise<unknown>> = {
      CreateRollouts: () => here.queue(stage, 1, { groupNumber: 1n }),
      UpsertGroup: () => here.store.upsertGroup(here.namespace, newGroup(stage.id, { number: 2n })),
      UpdateStage: () => here.store.updateStage(here.namespace, stage.id, { phase: 'late' }),
      CompleteStage: () => here.store.moveStage(here.caller, stage.id, 'complete', SILENT),
      RetryRollout: () => here.retry(tokenOf(claim)),
      UpsertEnvironment: () => here.store.upsertEnvironment(here.caller, newEnvironment(run.id)),
    };
    await on.sql.rows('begin');
    // Takes the same locks as a deletion.
    await on.sql.rows(`select 1 from runs where id = '${run.id}' for update`);
    await on.sql.rows(`update runs set hidden = true where id = '${run.id}'`);
    const late = Object.entries(calls).map(async ([name, call]) => [name, (await refusalOf(call())).reason]);
    // All calls have checked what they name, and wait for the row of the run.
    await waitingForLocks(on.sql.rows, late.length);
    await on.sql.rows('commit');
    expect(Object.fromEntries(await Promise.all(late))).toEqual({
      CreateRollouts: 'STAGE_NOT_FOUND',
      UpsertGroup: 'STAGE_NOT_FOUND',
      UpdateStage: 'STAGE_NOT_FOUND',
      CompleteStage: 'STAGE_NOT_FOUND',
      RetryRollout: 'ROLLOUT_NOT_FOUND',
      UpsertEnvironment: 'RUN_NOT_FOUND',
    });
  });
});
