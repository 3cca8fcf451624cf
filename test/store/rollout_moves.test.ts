import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { Status } from '../../src/domain/lifecycle.ts';
import { ROLLOUT_MOVES, ROLLOUT_VERBS, type RolloutVerb } from '../../src/domain/rollout.ts';
import type { Claim, NewValidation } from '../../src/store/contract/rollout.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { NO_REPORT, NO_RESULT, NOTHING_SAID, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { dumpNamespace } from './sql.ts';

describeStore('verbs of rollouts', (on) => {
  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    return { scene, ...(await scene.place()) };
  };

  const verbs = (scene: RolloutScene, claim: Claim): Record<RolloutVerb, () => Promise<unknown>> => ({
    start: () => scene.start(claim),
    complete: () => scene.complete(claim),
    fail: () => scene.fail(claim),
    cancel: () => scene.cancel(claim.rollout.id),
    release: () => scene.release(tokenOf(claim)),
    retry: () => scene.retry(tokenOf(claim)),
  });

  /** The verbs that bring a claimed rollout to a status. */
  const ways: Record<string, readonly RolloutVerb[]> = {
    PENDING: ['release'],
    INITIALIZING: [],
    RUNNING: ['start'],
    COMPLETED: ['start', 'complete'],
    FAILED: ['fail'],
    CANCELLED: ['cancel'],
  };

  it('L3, L5: every verb from every status changes it and is recorded, has taken effect already, or is refused by name', async () => {
    const { scene, stage } = await fresh();
    for (const [status, way] of Object.entries(ways)) {
      for (const verb of ROLLOUT_VERBS) {
        const [id = ''] = await scene.queue(stage, 1, {
          groupNumber: 0n,
          number: BigInt(Math.floor(Math.random() * 1e12)),
        });
        const claim = await scene.claimOne();
        expect(claim.rollout.id).toBe(id);
        for (const step of way) await verbs(scene, claim)[step]();
        expect((await scene.rollout(id)).status).toBe(status);
        const before = await scene.rollout(id);
        const histories = await scene.history('ROLLOUT', { id });
        const { from, to } = ROLLOUT_MOVES[verb];
        const call = verbs(scene, claim)[verb];
        const label = `${verb} from ${status}`;
        const lost = verb !== 'cancel' && verb !== 'retry' && ['PENDING', 'CANCELLED'].includes(status);
        if (lost && verb !== 'release') {
          expect((await refusalOf(call())).reason, label).toBe('LEASE_LOST');
        } else if (from.includes(status as Status)) {
          await call();
          expect((await scene.rollout(id)).status, label).toBe(to);
          const [last] = (await scene.history('ROLLOUT', { id })).slice(-1);
          expect(last, label).toMatchObject({ ordinal: BigInt(histories.length), oldStatus: status, newStatus: to });
          await scene.cancel(id).catch(() => undefined);
          continue;
        } else if (status === to || lost) await call();
        else {
          expect(await refusalOf(call()), label).toMatchObject({
            reason: 'ILLEGAL_TRANSITION',
            metadata: { status, verb },
          });
        }
        expect(await scene.rollout(id), label).toEqual(before);
        expect(await scene.history('ROLLOUT', { id }), label).toHaveLength(histories.length);
        await scene.cancel(id).catch(() => undefined);
      }
    }
  });

  it('F2, Q2: a verb of an older attempt is LEASE_LOST and changes nothing, whatever happened since', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1, { maxAttempts: 9 });
    const old = await scene.claimOne({ workerId: 'old' });
    await scene.start(old);
    const others = async () => {
      const before = await dumpNamespace(on.sql, scene.namespace);
      const calls = [
        ...(['start', 'complete', 'fail'] as const).map((verb) => verbs(scene, old)[verb]()),
        scene.store.updateRollout(scene.caller, id, old.rollout.attempt, { phase: 'late' }),
      ];
      for (const refusal of await Promise.all(calls.map(refusalOf))) expect(refusal.reason).toBe('LEASE_LOST');
      const [state] = await scene.heartbeat([tokenOf(old)]);
      expect(state).toMatchObject({ kept: false, remainingMs: undefined });
      expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
    };
    await scene.release(tokenOf(old));
    await others();
    const next = await scene.claimOne({ workerId: 'new' });
    await others();
    expect((await refusalOf(scene.retry(tokenOf(old)))).metadata).toEqual({
      rollout: id,
      attempt: '2',
      status: 'INITIALIZING',
    });
    await scene.complete(next, { details: { ...NOTHING_SAID, message: 'done' } });
    await others();
    expect(await scene.rollout(id)).toMatchObject({ status: 'COMPLETED', statusMessage: 'done', attempt: 2 });
  });

  it('N2: a worker moves only what its principal has claimed; a caller with the role WRITE moves all', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1);
    const held = await scene.claimOne();
    await scene.start(held);
    const stranger = { ...scene.caller, actor: 'stranger', ownClaimsOnly: true };
    const before = await dumpNamespace(on.sql, scene.namespace);
    const end = { id, attempt: held.rollout.attempt, details: NOTHING_SAID, result: undefined };
    const whole = { ...end, expectedNextStepNumber: undefined, ...NO_REPORT };
    const { store } = scene;
    const calls = [
      store.startRollout(stranger, tokenOf(held), NOTHING_SAID),
      store.endRollout(stranger, { ...whole, status: 'COMPLETED' }),
      store.endRollout(stranger, { ...whole, status: 'FAILED' }),
      store.releaseRollout(stranger, tokenOf(held), { ...NOTHING_SAID, refundAttempt: false }, NO_REPORT),
      store.updateRollout(stranger, id, held.rollout.attempt, { phase: 'taken' }),
      store.updateRollout(stranger, id, undefined, { metrics: new Map([['m', 1]]) }),
    ];
    for (const refusal of await Promise.all(calls.map(refusalOf)))
      expect(refusal).toMatchObject({ reason: 'PERMISSION_DENIED', metadata: { rollout: id } });
    const [state] = await store.heartbeatRollouts(stranger, [tokenOf(held)], 60_000);
    expect(state).toMatchObject({ kept: false, remainingMs: undefined });
    expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
    const worker = { ...scene.caller, ownClaimsOnly: true };
    expect(await store.updateRollout(worker, id, held.rollout.attempt, { phase: 'own' })).toMatchObject({
      phase: 'own',
    });
    const trainer = { ...scene.caller, actor: 'trainer' };
    expect(await store.endRollout(trainer, { ...whole, status: 'FAILED' })).toMatchObject({ status: 'FAILED' });
  });

  it('L5: the same end again writes nothing; another message or result is RESULT_CONFLICT', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne();
    const details = { ...NOTHING_SAID, message: 'm' };
    const result = { ...NO_RESULT, reward: Number.NaN, success: true, errors: ['e'], summaryJson: '{"a": 1}' };
    const done = await scene.complete(claim, { details: details, result });
    const before = await dumpNamespace(on.sql, scene.namespace);
    expect(await scene.complete(claim, { details: details, result })).toEqual(done);
    for (const other of [
      { details: NOTHING_SAID, result },
      { details: details, result: undefined },
      { details: details, result: { ...result, success: false } },
      { details: details, result: { ...result, reward: 0 } },
      { details: details, result: { ...result, summaryJson: '{"a":1}' } },
    ]) {
      expect((await refusalOf(scene.complete(claim, other))).reason).toBe('RESULT_CONFLICT');
    }
    expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
    await scene.store.updateRollout(scene.caller, done.id, undefined, { statusMessage: 'looked at' });
    expect(await scene.complete(claim, { details: details, result })).toMatchObject({ statusMessage: 'looked at' });
  });

  it('L5: metrics, timings and validations belong to an end: the same request succeeds again, another is RESULT_CONFLICT', async () => {
    const { scene, stage } = await fresh();
    const taskId = await scene.task('t');
    await scene.validator(taskId, 'state');
    const [id = ''] = await scene.queue(stage, 1, { taskId });
    const claim = await scene.claimOne();
    const texts = { query: '', expectedResult: '', actualResult: '', errorMessage: '', detailsJson: '' };
    const details = (name: string, success: boolean, fields: Partial<NewValidation> = {}) => [
      { name, success, advisory: false, executionMs: undefined, ...texts, ...fields },
    ];
    const end = {
      validations: details('state', true),
      metrics: new Map([['tokens', 5]]),
      timings: new Map([['task', { startTime: 1n, endTime: 2n }]]),
    };
    const done = await scene.complete(claim, end);
    const others = [
      ...[details('state', false), details('shot', true), details('state', true, { actualResult: 'x' }), []].map(
        (validations) => {
          return { ...end, validations };
        },
      ),
      { ...end, validations: details('state', true, { advisory: true }) },
      { ...end, metrics: new Map([['tokens', 6]]) },
      { ...end, metrics: new Map() },
      { ...end, timings: new Map([['task', { startTime: 1n, endTime: 3n }]]) },
    ];
    const areTold = async () => {
      const before = await dumpNamespace(on.sql, scene.namespace);
      const now = await scene.rollout(id);
      expect(await scene.complete(claim, end)).toEqual(now);
      for (const other of others) {
        const refusal = await refusalOf(scene.complete(claim, other));
        expect(refusal).toMatchObject({
          reason: 'RESULT_CONFLICT',
          metadata: { status: 'COMPLETED', verb: 'complete' },
        });
      }
      expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
    };
    await areTold();
    await scene.store.recordValidation(scene.namespace, id, undefined, details('state', false)[0]!);
    await scene.store.updateRollout(scene.caller, id, 1, { metrics: new Map([['tokens', 6]]) });
    await scene.store.updateRollout(scene.caller, id, 1, {
      timings: new Map([['task', { startTime: 1n, endTime: 3n }]]),
    });
    await areTold();
    expect(await scene.rollout(id)).toMatchObject({ success: false, metrics: new Map([['tokens', 6]]) });
    expect(done.success).toBe(true);
  });

  it('L5: a failure is compared like a completion, and a cancellation by its message', async () => {
    const { scene, stage } = await fresh();
    const [id = '', cancelled = ''] = await scene.queue(stage, 2);
    const [claim] = await scene.claims({ count: 2 });
    const result = { ...NO_RESULT, reward: 1 };
    const failed = await scene.fail(claim!, { result });
    expect(await scene.fail(claim!, { result })).toEqual(failed);
    expect((await refusalOf(scene.fail(claim!, { result: { ...result, reward: 2 } }))).reason).toBe('RESULT_CONFLICT');
    expect((await refusalOf(scene.fail(claim!))).reason).toBe('RESULT_CONFLICT');
    await scene.retry({ id, attempt: 1 });
    // The attempt before had a result, which does not belong to the cancellation.
    for (const each of [id, cancelled]) {
      const now = await scene.cancel(each, 'enough');
      expect(await scene.cancel(each, 'enough')).toEqual(now);
      expect((await refusalOf(scene.cancel(each, 'other'))).reason).toBe('RESULT_CONFLICT');
    }
  });

  it('L3: start sets time, message and phase, and the attempt is RUNNING', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1);
    const claim = await scene.claimOne();
    const started = await scene.start(claim, { message: 'go', metadataJson: '{"pid":1}', phase: 'task' });
    expect(started).toMatchObject({
      status: 'RUNNING',
      statusMessage: 'go',
      phase: 'task',
      startTime: started.updateTime,
    });
    const { startTime } = started;
    expect((await scene.record(id)).attempts).toMatchObject([{ status: 'RUNNING', startTime, endTime: undefined }]);
    expect((await scene.history('ROLLOUT', { id })).at(-1)).toMatchObject({
      newStatus: 'RUNNING',
      message: 'go',
      metadataJson: '{"pid":1}',
      phase: 'task',
    });
  });

  it('Q1: release keeps the failed attempt visible with its trajectory sealed FAILED, and requeues the rollout', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1);
    const claim = await scene.claimOne({ workerId: 'w1' });
    await scene.start(claim, { phase: 'task' });
    await scene.append(claim.trajectory, [wordStep(0n, 'a'), wordStep(1n, 'b', { reward: 1 })]);
    const released = await scene.release(tokenOf(claim), { message: 'out of memory' });
    expect(released).toMatchObject({
      status: 'PENDING',
      statusMessage: 'out of memory',
      phase: '',
      workerId: '',
      leaseEndTime: undefined,
      attempt: 1,
    });
    expect(await scene.trajectoryOf(claim)).toMatchObject({ status: 'FAILED', statusMessage: 'out of memory' });
    expect(await scene.history('TRAJECTORY', claim.trajectory)).toMatchObject([
      {},
      { oldStatus: 'RUNNING', newStatus: 'FAILED', message: 'out of memory' },
    ]);
    const next = await scene.claimOne({ workerId: 'w2' });
    expect(next.rollout).toMatchObject({ id, attempt: 2, workerId: 'w2' });
    expect(next.trajectory.id).not.toBe(claim.trajectory.id);
    expect((await scene.record(id)).attempts).toMatchObject([
      { number: 1, status: 'FAILED', message: 'out of memory', workerId: 'w1', trajectoryId: claim.trajectory.id },
      { number: 2, status: 'INITIALIZING', message: '', workerId: 'w2', endTime: undefined },
    ]);
  });

  it('Q3: the release of the last attempt fails the rollout, with its turns and reward', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1, { maxAttempts: 2 });
    await scene.release(tokenOf(await scene.claimOne()));
    const claim = await scene.claimOne();
    await scene.append(claim.trajectory, [wordStep(0n, 'root'), wordStep(1n, 'a', { reward: 2 })]);
    const failed = await scene.release(tokenOf(claim), { message: 'again' });
    expect(failed).toMatchObject({ status: 'FAILED', turns: 1n, reward: 2, attempt: 2, statusMessage: 'again' });
    expect(failed.endTime).toBe(failed.updateTime);
    expect(await scene.release(tokenOf(claim), { message: 'again' })).toEqual(failed);
    expect((await refusalOf(scene.complete(claim))).reason).toBe('LEASE_LOST');
    expect(await scene.claims()).toEqual([]);
    expect((await scene.record(id)).attempts).toHaveLength(2);
  });

  it('Q2: retry adds one attempt, without values of the last one', async () => {
    const { scene, stage } = await fresh();
    await scene.task('t');
    await scene.validator('t', 'state');
    const [id = ''] = await scene.queue(stage, 1, { maxAttempts: 1, taskId: 't' });
    const claim = await scene.claimOne();
    await scene.store.recordValidation(scene.namespace, id, 1, {
      name: 'state',
      success: true,
      advisory: false,
      query: '',
      expectedResult: '',
      actualResult: 'x',
      executionMs: undefined,
      errorMessage: '',
      detailsJson: '',
    });
    const failed = await scene.fail(claim, { result: { ...NO_RESULT, reward: 1, errors: ['e'] } });
    expect(failed).toMatchObject({ status: 'FAILED', reward: 1, success: false, validationPassed: true });
    const retried = await scene.retry(tokenOf(claim), { message: 'once more' });
    expect(retried).toMatchObject({
      status: 'PENDING',
      statusMessage: 'once more',
      maxAttempts: 2,
      result: undefined,
      reward: undefined,
      success: undefined,
      validationPassed: undefined,
      endTime: undefined,
      attempt: 1,
    });
    expect((await scene.record(id)).validations).toEqual([]);
    expect(await scene.retry(tokenOf(claim), { message: 'once more' })).toEqual(retried);
    const again = await scene.claimOne();
    expect(again.rollout.attempt).toBe(2);
    expect((await refusalOf(scene.retry(tokenOf(claim)))).reason).toBe('LEASE_LOST');
    expect((await refusalOf(scene.retry(tokenOf(again)))).reason).toBe('ILLEGAL_TRANSITION');
  });

  it('Q2: a rollout that was cancelled before its first claim is retried as attempt 0', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1);
    await scene.cancel(id);
    expect(await scene.retry({ id, attempt: 0 })).toMatchObject({ status: 'PENDING', attempt: 0, maxAttempts: 3 });
    expect((await scene.claimOne()).rollout).toMatchObject({ id, attempt: 1 });
  });

  it('an unknown rollout, or one of another namespace, is ROLLOUT_NOT_FOUND for every verb', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne();
    const stranger = new RolloutScene(on.store);
    for (const verb of ROLLOUT_VERBS) {
      expect((await refusalOf(verbs(stranger, claim)[verb]())).reason).toBe('ROLLOUT_NOT_FOUND');
    }
    const nowhere = { ...claim, rollout: { ...claim.rollout, id: randomUUID() } };
    for (const verb of ROLLOUT_VERBS) {
      expect((await refusalOf(verbs(scene, nowhere)[verb]())).reason).toBe('ROLLOUT_NOT_FOUND');
    }
  });

  it('L5: of twenty concurrent verbs each that changes the status is recorded once, in a valid order', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1, { maxAttempts: 100 });
    const claim = await scene.claimOne();
    const calls = Array.from({ length: 20 }, (_, i) => {
      const verb = ROLLOUT_VERBS[i % ROLLOUT_VERBS.length]!;
      return verbs(scene, claim)[verb]();
    });
    for (const result of await Promise.allSettled(calls)) {
      if (result.status === 'rejected') {
        expect(['LEASE_LOST', 'ILLEGAL_TRANSITION', 'RESULT_CONFLICT']).toContain(result.reason.reason);
      }
    }
    const history = await scene.history('ROLLOUT', { id });
    expect(history.map(({ ordinal }) => Number(ordinal))).toEqual(history.map((_, i) => i));
    for (const [i, change] of history.entries()) {
      if (i > 0) expect(change.oldStatus).toBe(history[i - 1]?.newStatus);
    }
    expect((await scene.rollout(id)).status).toBe(history.at(-1)?.newStatus);
  });
});
