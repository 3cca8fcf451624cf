import { setTimeout as later } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { isTerminal } from '../../src/domain/lifecycle.ts';
import type { Rollout } from '../../src/domain/rollout.ts';
import type { Stage } from '../../src/domain/run.ts';
import type { RolloutsOf } from '../../src/store/contract/run.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { NOTHING_SAID, RolloutScene, tokenOf } from './rollout_scene.ts';
import { SILENT } from './run_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows } from './sql.ts';

describeStore('rollouts that are cancelled with their run or stage', (on) => {
  const details = { ...SILENT, message: 'budget spent', metadataJson: '{"a":1}' };

  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    return { scene, ...(await scene.place()) };
  };
  const cancelRun = (scene: RolloutScene, run: { readonly id: string }) =>
    scene.move(run, 'cancel', details, { cancelRollouts: true });
  const cancelStage = (scene: RolloutScene, stage: { readonly id: string }) =>
    scene.store.moveStage(scene.caller, stage.id, 'cancel', details, true);
  const reopenStage = (scene: RolloutScene, stage: { readonly id: string }) =>
    scene.store.moveStage(scene.caller, stage.id, 'reopen', SILENT);

  /** Cancels batch by batch until none is left. Returns how many were cancelled after each batch. */
  const finish = async (scene: RolloutScene, of: RolloutsOf): Promise<number[]> => {
    const counts: number[] = [];
    for (;;) {
      const state = await scene.store.cancelNextRollouts(scene.namespace, of);
      counts.push(Number(state?.cancelled));
      if (state?.more !== true) return counts;
    }
  };
  const open = async (scene: RolloutScene, of: RolloutsOf): Promise<Rollout[]> =>
    (await scene.rollouts(of)).filter(({ status }) => !isTerminal(status));

  /** Rollouts of every status, with all data that an attempt can have. */
  const fill = async (scene: RolloutScene, stage: Stage): Promise<string[]> => {
    const ids = await scene.queue(stage, 6, { maxAttempts: 5, labels: new Map([['stage', stage.id]]) });
    const labels = new Map([['stage', stage.id]]);
    const [released, held, running, done, withoutTrajectory] = await scene.claims({
      count: 5,
      labels,
      stageId: stage.id,
    });
    const metrics = new Map([['tokens', 1]]);
    for (const { rollout } of [released!, running!]) {
      await scene.store.updateRollout(scene.caller, rollout.id, 1, { metrics });
      await scene.store.overrideValidation(scene.caller, rollout.id, 1, { success: true, reason: 'seen', actor: 'a' });
    }
    await scene.start(running!, { phase: 'task' });
    for (const claim of [released!, running!]) {
      await scene.append(claim.trajectory, [wordStep(0n, 'root'), wordStep(1n, 'a', { reward: 2 })]);
    }
    await scene.release(tokenOf(released!));
    await scene.store.updateRollout(scene.caller, held!.rollout.id, undefined, { phase: 'env' });
    await scene.complete(done!);
    await scene.delete(withoutTrajectory!.trajectory);
    return ids;
  };

  it('L2: are cancelled as CancelRollout does, with history, attempts, sealed trajectories and the counts of their groups', async () => {
    const { scene, run, stage } = await fresh();
    const other = await scene.stage(run, { kind: 'EVAL', number: 0n, status: 'RUNNING' });
    const [one, all] = [await fill(scene, stage), await fill(scene, other)];
    for (const id of one) {
      if (isTerminal((await scene.rollout(id)).status)) continue;
      const token = { id, attempt: undefined, status: 'CANCELLED' } as const;
      await scene.store.endRollout(scene.caller, {
        ...token,
        details: { ...NOTHING_SAID, message: details.message, metadataJson: details.metadataJson },
        result: undefined,
        validations: [],
        expectedNextStepNumber: undefined,
        metrics: new Map(),
        timings: new Map(),
      });
    }
    await cancelStage(scene, other);
    expect(await finish(scene, { stageId: other.id })).toEqual([5, 5]);
    const told = async (id: string) => {
      const { rollout, attempts } = await scene.record(id);
      const trajectories = await Promise.all(
        attempts.flatMap(({ trajectoryId }) => (trajectoryId === '' ? [] : [scene.get(trajectoryId)])),
      );
      const histories = await Promise.all(
        trajectories.map((trajectory) => scene.history('TRAJECTORY', { id: trajectory.id })),
      );
      return {
        rollout: [rollout, attempts].map((each) => plain(each)),
        history: plain(await scene.history('ROLLOUT', { id })),
        trajectories: trajectories.map(({ status, statusMessage }) => [status, statusMessage]),
        histories: histories.map((each) => plain(each)),
      };
    };
    for (const [i, id] of all.entries()) expect(await told(id), `rollout ${i}`).toEqual(await told(one[i]!));
    const counts = async ({ id }: { readonly id: string }) => {
      const [group] = await scene.store.listGroups(scene.namespace, id, { limit: 9, after: undefined }, 'FULL');
      // The counters of the stage are written once for many rollouts.
      return plain({ ...group, revision: 0n });
    };
    expect(await counts(other)).toEqual(await counts(stage));
    const rows = await on.sql.rows(
      `select rollouts, terminal_rollouts, tried_rollouts, terminal_turns, timed_turns from groups
        where namespace = '${scene.namespace}'`,
    );
    expect(rows).toHaveLength(2);
    expect(rows[0]).toEqual(rows[1]);
    expect(rows[0]).toMatchObject({ terminal_rollouts: expect.toSatisfy((count) => Number(count) === 6) });
  });

  /** The rows without ids, keys and times. */
  function plain(value: unknown): unknown {
    const left = /^(?:\w*(?:[iI]d|[kK]ey|Time)|run|stage|labels|tree|ref|ordinalTime)$/;
    const replace = (name: string, each: unknown): unknown => {
      if (left.test(name)) return undefined;
      if (typeof each === 'bigint') return `${each}`;
      return each instanceof Map ? [...each] : each;
    };
    return JSON.parse(JSON.stringify(value, replace) ?? 'null');
  }

  it('L2: no transaction cancels more than 200; other stages, runs and ended rollouts are unchanged', async () => {
    const { scene, run, stage } = await fresh();
    const other = await scene.stage(run, { kind: 'EVAL', number: 0n, status: 'RUNNING' });
    const foreign = await scene.place();
    for (const place of [other, foreign.stage]) await scene.queue(place, 3);
    for (let group = 0n; group < 5n; group += 1n) await scene.queue(stage, 90, { groupNumber: group });
    const [done] = await scene.claims({ stageId: stage.id });
    await scene.complete(done!);
    await scene.claims({ stageId: stage.id, count: 100 });
    await cancelStage(scene, stage);
    expect(await finish(scene, { stageId: stage.id })).toEqual([200, 400, 449, 449]);
    const statuses = (await scene.rollouts({ stageId: stage.id })).map(({ status }) => status);
    expect(statuses.filter((status) => status !== 'CANCELLED')).toEqual(['COMPLETED']);
    expect(await open(scene, { runId: run.id })).toHaveLength(3);
    await cancelRun(scene, run);
    expect(await finish(scene, { runId: run.id })).toEqual([3, 3]);
    expect(await open(scene, { runId: foreign.run.id })).toHaveLength(3);
  });

  it('Q4: from the verb on no rollout is claimed, even before all are cancelled', async () => {
    const { scene, run, stage } = await fresh();
    await scene.queue(stage, 3);
    await cancelRun(scene, run);
    expect(await open(scene, { runId: run.id })).toHaveLength(3);
    expect(await scene.claims({ count: 3 })).toEqual([]);
    expect(await scene.claims({ count: 3, stageId: stage.id })).toEqual([]);
  });

  it('L5: a repeated verb continues the cancellation, and counts all rollouts cancelled since', async () => {
    const { scene, run, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 250);
    await cancelRun(scene, run);
    const first = await scene.store.cancelNextRollouts(scene.namespace, { runId: run.id });
    expect(first).toEqual({ cancelled: 200n, more: true });
    await cancelRun(scene, run);
    expect(await finish(scene, { runId: run.id })).toEqual([250, 250]);
    await cancelRun(scene, run);
    expect(await finish(scene, { runId: run.id })).toEqual([250]);
    await scene.retry({ id, attempt: 0 });
    await cancelRun(scene, run);
    expect(await finish(scene, { runId: run.id })).toEqual([251, 251]);
  });

  it('L2, Q4: a rollout created or retried after the last batch is PENDING, is not claimed, and is cancelled by the repeated verb', async () => {
    const { scene, run, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 2);
    await cancelRun(scene, run);
    expect(await finish(scene, { runId: run.id })).toEqual([2, 2]);
    await scene.retry({ id, attempt: 0 });
    await scene.queue(stage, 3);
    while (await scene.store.cancelMarkedRollouts());
    expect((await open(scene, { runId: run.id })).map(({ status }) => status)).toEqual(['PENDING', 'PENDING']);
    expect(await scene.claims({ count: 3 })).toEqual([]);
    await cancelRun(scene, run);
    expect(await finish(scene, { runId: run.id })).toEqual([4, 4]);
  });

  it('L5: a run that was cancelled without its rollouts can be cancelled with them; a refused verb marks none', async () => {
    const { scene, run, stage } = await fresh();
    await scene.queue(stage, 2);
    await scene.move(run, 'cancel', details);
    expect(await scene.store.cancelNextRollouts(scene.namespace, { runId: run.id })).toBeUndefined();
    const other = scene.move(run, 'cancel', { ...details, message: 'another' }, { cancelRollouts: true });
    expect((await refusalOf(other)).reason).toBe('RESULT_CONFLICT');
    expect(await scene.store.cancelNextRollouts(scene.namespace, { runId: run.id })).toBeUndefined();
    await cancelRun(scene, run);
    expect(await finish(scene, { runId: run.id })).toEqual([2, 2]);
  });

  it('L2: a run or stage that is reopened keeps the remaining rollouts, and rollouts created later are not cancelled', async () => {
    for (const noun of ['run', 'stage'] as const) {
      const { scene, run, stage } = await fresh();
      await scene.queue(stage, 230);
      const of = noun === 'run' ? { runId: run.id } : { stageId: stage.id };
      await (noun === 'run' ? cancelRun(scene, run) : cancelStage(scene, stage));
      await scene.store.cancelNextRollouts(scene.namespace, of);
      await (noun === 'run' ? scene.move(run, 'reopen') : reopenStage(scene, stage));
      await scene.queue(stage, 2, { groupNumber: 1n });
      expect(await scene.store.cancelNextRollouts(scene.namespace, of)).toBeUndefined();
      while (await scene.store.cancelMarkedRollouts());
      expect(await open(scene, of)).toHaveLength(32);
      expect(await scene.claims({ count: 40 })).toHaveLength(32);
    }
  });

  it('L2: a cancellation that a server left unfinished is continued by any other, in all namespaces, until it is complete', async () => {
    const places = await Promise.all([fresh(), fresh()]);
    for (const { scene, run, stage } of places) {
      await scene.queue(stage, 210);
      await cancelRun(scene, run);
    }
    await cancelStage(places[0]!.scene, places[0]!.stage);
    await on.reopen();
    while (await on.store.cancelMarkedRollouts());
    for (const { scene, run, stage } of places) {
      const again = new RolloutScene(on.store, scene.namespace);
      expect(await open(again, { stageId: stage.id })).toEqual([]);
      const state = await on.store.cancelNextRollouts(scene.namespace, { runId: run.id });
      expect(state?.more).toBe(false);
      const [last] = (await again.history('ROLLOUT', { id: (await again.rollouts({ runId: run.id }))[0]!.id })).slice(
        -1,
      );
      expect(last).toMatchObject({ newStatus: 'CANCELLED', message: 'budget spent', actor: scene.caller.actor });
    }
  });

  it('B4: a run deleted meanwhile is skipped, and its mark is purged with it', async () => {
    const { scene, run, stage } = await fresh();
    await scene.queue(stage, 2);
    await cancelRun(scene, run);
    await scene.store.deleteRun(scene.namespace, run.id, 'REFUSE');
    expect(await scene.store.cancelMarkedRollouts()).toBe(false);
    const next = scene.store.cancelNextRollouts(scene.namespace, { runId: run.id });
    expect((await refusalOf(next)).reason).toBe('RUN_NOT_FOUND');
    while (await scene.store.purgeDeleted(1000));
    expect((await countRows(on.sql, scene.namespace)).rollout_cancellations).toBe(0);
  });

  it('Q3: of rollouts claimed, released and completed meanwhile none stays open or is counted twice', async () => {
    const { scene, run, stage } = await fresh();
    await scene.queue(stage, 220, { maxAttempts: 100 });
    const claims = [...(await scene.claims({ count: 40 })), ...(await scene.claims({ count: 40 }))];
    const completed: Rollout[] = [];
    const work = claims.map(async (claim, i) => {
      await later(0);
      if (i % 3 === 0) await scene.release(tokenOf(claim)).catch(() => undefined);
      else if (i % 3 === 1) await scene.claims().catch(() => undefined);
      else
        await scene
          .complete(claim)
          .then((done) => completed.push(done))
          .catch(() => undefined);
    });
    await cancelRun(scene, run);
    const [counts] = await Promise.all([
      finish(scene, { runId: run.id }),
      finish(scene, { runId: run.id }),
      (async () => {
        while (await scene.store.cancelMarkedRollouts());
      })(),
      ...work,
    ]);
    expect(await open(scene, { runId: run.id })).toEqual([]);
    const all = await scene.rollouts({ runId: run.id });
    const cancelled = all.filter(({ status }) => status === 'CANCELLED').length;
    expect(cancelled + completed.length).toBe(220);
    expect(counts.at(-1)).toBe(cancelled);
    const [group] = await on.sql.rows(`select terminal_rollouts from groups where namespace = '${scene.namespace}'`);
    expect(Number(group?.terminal_rollouts)).toBe(220);
  });
});
