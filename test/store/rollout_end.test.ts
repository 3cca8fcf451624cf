import { expect, it } from 'vitest';
import type { NewValidation } from '../../src/store/contract/rollout.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { NOTHING_SAID, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { dumpNamespace } from './sql.ts';

describeStore('ends of rollouts', (on) => {
  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    return { scene, ...(await scene.place()) };
  };
  const details = (message: string) => ({ ...NOTHING_SAID, message });
  const validation = (name: string, success: boolean): NewValidation => ({
    name,
    success,
    advisory: false,
    query: '',
    expectedResult: '',
    actualResult: 'seen',
    executionMs: 12,
    errorMessage: '',
    detailsJson: '{"a":1}',
  });

  it('Q1: completion stores result, validations, metrics and timings, and seals the trajectory, in one transaction', async () => {
    const { scene, stage } = await fresh();
    await scene.task('t');
    await scene.validator('t', 'state');
    await scene.validator('t', 'shot', true);
    const [id = ''] = await scene.queue(stage, 1, { taskId: 't' });
    const claim = await scene.claimOne();
    await scene.start(claim);
    await scene.open(claim.trajectory);
    await scene.append(claim.trajectory, [wordStep(0n, 'r'), wordStep(1n, 'a', { reward: 1 })], { writerEpoch: 1n });
    const result = {
      reward: 7.5,
      taskCompleted: true,
      agentReportedSuccess: false,
      success: false,
      errors: ['one', 'two'],
      summaryJson: '{"why": "x"}',
    };
    const span = { startTime: 1n, endTime: undefined };
    const done = await scene.complete(claim, {
      details: { message: 'well', metadataJson: '{"m":1}', phase: 'over' },
      result,
      validations: [validation('state', true), validation('shot', false)],
      expectedNextStepNumber: 2n,
      metrics: new Map([['tokens', 10]]),
      timings: new Map([['task', span]]),
    });
    expect(done).toMatchObject({
      status: 'COMPLETED',
      statusMessage: 'well',
      phase: 'over',
      result,
      validationPassed: true,
      success: true,
      reward: 7.5,
      turns: 1n,
      workerId: '',
      leaseEndTime: undefined,
      metrics: new Map([['tokens', 10]]),
      timings: new Map([['task', span]]),
    });
    expect(done.endTime).toBe(done.updateTime);
    const record = await scene.record(id);
    expect(record.rollout).toEqual(done);
    expect(record.attempts).toMatchObject([{ status: 'COMPLETED', message: 'well', endTime: done.endTime }]);
    expect(record.validations).toMatchObject([
      { name: 'shot', advisory: true, success: false, query: 'is it shot?', actualResult: 'seen' },
      { name: 'state', advisory: false, success: true, executionMs: 12, detailsJson: '{"a":1}' },
    ]);
    expect(await scene.trajectoryOf(claim)).toMatchObject({
      status: 'COMPLETED',
      statusMessage: 'well',
      nextStepNumber: 2n,
    });
    const late = scene.append(claim.trajectory, [wordStep(2n, 'late')], { writerEpoch: 1n });
    expect((await refusalOf(late)).reason).toBe('TRAJECTORY_SEALED');
    expect((await scene.history('ROLLOUT', { id })).at(-1)).toMatchObject({
      oldStatus: 'RUNNING',
      newStatus: 'COMPLETED',
      message: 'well',
      metadataJson: '{"m":1}',
      phase: 'over',
    });
  });

  it('Q1: an unexpected end of the trajectory is refused with the actual end, and nothing is written', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne();
    await scene.append(claim.trajectory, [wordStep(0n, 'a'), wordStep(1n, 'b')]);
    const before = await dumpNamespace(on.sql, scene.namespace);
    for (const expected of [0n, 1n, 3n]) {
      const refusal = await refusalOf(scene.complete(claim, { expectedNextStepNumber: expected }));
      expect(refusal).toMatchObject({ reason: 'UNEXPECTED_POSITION', metadata: { next_step_number: '2' } });
    }
    expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
    expect((await scene.complete(claim, { expectedNextStepNumber: 2n })).status).toBe('COMPLETED');
  });

  it('M3, W11: without a reward in the result it is the sum over own steps, without NaN; it is unset if no step has one', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 5);
    const [a, b, c, d, e] = await scene.claims({ count: 5 });
    const append = (claim: typeof a, rewards: readonly (number | undefined)[]) =>
      scene.append(
        claim!.trajectory,
        rewards.map((reward, i) => wordStep(BigInt(i), 'x', { reward })),
      );
    await append(a, [0.5, undefined, 2]);
    await append(b, [undefined, undefined]);
    await append(c, [1, Number.NaN]);
    await append(d, [1, -1]);
    await append(e, [Number.NaN]);
    expect(await scene.complete(a!)).toMatchObject({ reward: 2.5, turns: 2n, success: undefined });
    expect(await scene.fail(b!)).toMatchObject({ reward: undefined, turns: 1n });
    expect(await scene.complete(c!)).toMatchObject({ reward: 1 });
    expect(await scene.complete(d!)).toMatchObject({ reward: 0 });
    expect(await scene.complete(e!)).toMatchObject({ reward: undefined });
  });

  it('L3: a PENDING or claimed rollout can be cancelled by anybody; its worker gets LEASE_LOST', async () => {
    const { scene, stage } = await fresh();
    const [first = '', second = ''] = await scene.queue(stage, 2);
    const claim = await scene.claimOne();
    await scene.append(claim.trajectory, [wordStep(0n, 'a'), wordStep(1n, 'b')]);
    expect(await scene.cancel(first, 'enough')).toMatchObject({
      status: 'CANCELLED',
      turns: 1n,
      statusMessage: 'enough',
    });
    expect(await scene.cancel(second)).toMatchObject({ status: 'CANCELLED', attempt: 0, trajectoryId: '', turns: 0n });
    expect(await scene.trajectoryOf(claim)).toMatchObject({ status: 'CANCELLED', statusMessage: 'enough' });
    expect((await scene.record(first)).attempts).toMatchObject([{ status: 'CANCELLED', message: 'enough' }]);
    expect((await refusalOf(scene.complete(claim))).reason).toBe('LEASE_LOST');
    expect(await scene.heartbeat([tokenOf(claim)])).toMatchObject([
      { kept: false, status: 'CANCELLED', runStatus: 'RUNNING' },
    ]);
    expect(await scene.claims()).toEqual([]);
  });

  it('L3: a trajectory that the worker sealed, or that was deleted, does not prevent the end', async () => {
    const { scene, stage } = await fresh();
    const [first = '', second = ''] = await scene.queue(stage, 2);
    const [a, b] = await scene.claims({ count: 2 });
    await scene.append(a!.trajectory, [wordStep(0n, 'a')]);
    await scene.seal(a!.trajectory, 'FAILED', 'by hand');
    await scene.delete(b!.trajectory);
    await scene.complete(a!);
    expect(await scene.trajectoryOf(a!)).toMatchObject({ status: 'FAILED', statusMessage: 'by hand' });
    expect((await refusalOf(scene.complete(b!, { expectedNextStepNumber: 0n }))).reason).toBe('UNEXPECTED_POSITION');
    expect(await scene.complete(b!)).toMatchObject({ status: 'COMPLETED', trajectoryId: '', turns: 0n });
    expect((await scene.record(second)).attempts).toMatchObject([{ trajectoryId: '', status: 'COMPLETED' }]);
    expect((await scene.record(first)).attempts).toMatchObject([{ trajectoryId: a!.trajectory.id }]);
  });

  it('M2: a group counts its terminal rollouts and their turns, and a retry removes them from the count', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 3, { maxAttempts: 1 });
    const counts = async () => {
      const [row] = await on.sql.rows(
        `select terminal_rollouts as n, terminal_turns as t from groups where namespace = '${scene.namespace}'`,
      );
      return [Number(row?.n), Number(row?.t)];
    };
    const [a, b, c] = await scene.claims({ count: 3 });
    for (const [claim, turns] of [
      [a!, 4],
      [b!, 2],
      [c!, 1],
    ] as const) {
      const steps = Array.from({ length: turns + 1 }, (_, i) => wordStep(BigInt(i), 'x'));
      await scene.append(claim.trajectory, steps);
    }
    expect(await counts()).toEqual([0, 0]);
    await scene.complete(a!);
    expect(await counts()).toEqual([1, 4]);
    await scene.fail(b!);
    await scene.complete(a!);
    await scene.release(tokenOf(c!));
    expect(await counts()).toEqual([3, 7]);
    await scene.retry(tokenOf(b!));
    expect(await counts()).toEqual([2, 5]);
    await scene.cancel(b!.rollout.id);
    expect(await counts()).toEqual([3, 7]);
  });

  it('of twenty concurrent ends in one group the counters lose none', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 20);
    const claims = await scene.claims({ count: 20 });
    await Promise.all(
      claims.map((claim, i) => (i % 2 === 0 ? scene.complete(claim) : scene.fail(claim, { details: details('x') }))),
    );
    const [row] = await on.sql.rows(`select terminal_rollouts as n from groups where namespace = '${scene.namespace}'`);
    expect(Number(row?.n)).toBe(20);
  });

  it('W7: an end waits for a concurrent append or commits before it: every stored step is counted', async () => {
    for (let round = 0; round < 10; round += 1) {
      const { scene, stage } = await fresh();
      await scene.queue(stage, 1);
      const claim = await scene.claimOne();
      await scene.append(claim.trajectory, [wordStep(0n, 'root')]);
      const [appended, done] = await Promise.all([
        scene.append(claim.trajectory, [wordStep(1n, 'a'), wordStep(2n, 'b')]).then(
          () => 'appended',
          (error: { reason?: string }) => error.reason,
        ),
        scene.complete(claim),
      ]);
      expect(['appended', 'TRAJECTORY_SEALED']).toContain(appended);
      expect(done.turns).toBe(appended === 'appended' ? 2n : 0n);
      expect((await scene.trajectoryOf(claim)).nextStepNumber).toBe(done.turns + 1n);
    }
  });
});
