import { expect, it } from 'vitest';
import { runHint } from '../../src/domain/change.ts';
import type { Claim, NewRollout, NewValidation } from '../../src/store/contract/rollout.ts';
import { dose } from '../support/dose.ts';
import { describeStore } from './on_store.ts';
import { NO_RESULT, RolloutScene, tokenOf } from './rollout_scene.ts';
import { SILENT } from './run_scene.ts';
import { sqliteTextsByThread, textsOf } from './statement_count.ts';

describeStore('the effect of a success on its siblings', (on) => {
  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    return { scene, ...(await scene.place()) };
  };
  const succeeded = { ...NO_RESULT, success: true };
  const failed = { ...NO_RESULT, success: false };

  it('Q5, F-49: under CANCEL_PENDING a success cancels PENDING siblings, and siblings requeued later', async () => {
    const { scene, stage } = await fresh();
    const ids = await scene.queue(stage, 5, { onSuccess: 'CANCEL_PENDING' });
    const [other = ''] = await scene.queue(stage, 1, { groupNumber: 1n });
    const [a, b, c] = await scene.claims({ count: 3 });
    await scene.complete(a!, { result: { ...NO_RESULT, success: false } });
    expect((await scene.rollout(ids[3]!)).status).toBe('PENDING');
    await scene.complete(b!, { result: succeeded });
    for (const id of ids.slice(3)) {
      expect(await scene.rollout(id)).toMatchObject({
        status: 'CANCELLED',
        statusMessage: 'rollout 1 of its group succeeded',
      });
      expect((await scene.history('ROLLOUT', { id })).at(-1)).toMatchObject({
        newStatus: 'CANCELLED',
        actor: 'anabranch',
      });
    }
    expect((await scene.rollout(c!.rollout.id)).status).toBe('INITIALIZING');
    expect(await scene.release(tokenOf(c!))).toMatchObject({ status: 'CANCELLED', attempt: 1 });
    expect((await scene.record(c!.rollout.id)).attempts).toMatchObject([{ status: 'FAILED' }]);
    expect((await scene.rollout(other)).status).toBe('PENDING');
    const group = await scene.store.getGroup(scene.namespace, { stageId: stage.id, number: 0n });
    expect(group?.statistics).toMatchObject({ pending: 0n, live: 0n, completed: 2n, cancelled: 3n });
  });

  it('Q1, F-49: a sibling cancelled while PENDING shows turns and reward of its last attempt, whoever cancels it', async () => {
    const { scene, stage } = await fresh();
    const ids = await scene.queue(stage, 4, { onSuccess: 'CANCEL_PENDING' });
    const claims = await scene.claims({ count: 3 });
    const metrics = new Map([['m', Number.NaN]]);
    for (const [i, reward] of [Number.NaN, Number.NEGATIVE_INFINITY, -0].entries()) {
      await scene.start(claims[i]!);
      await scene.fail(claims[i]!, { result: { ...failed, reward }, metrics });
    }
    const before = await Promise.all(ids.slice(0, 3).map((id) => scene.rollout(id)));
    for (const claim of claims) await scene.retry(tokenOf(claim));
    await scene.cancel(ids[0]!);
    const winner = await scene.claimOne();
    const others = ids.filter((id) => id !== winner.rollout.id);
    await scene.complete(winner, { result: succeeded });
    for (const [i, id] of ids.slice(0, 3).entries()) {
      if (!others.includes(id)) continue;
      const { result, reward, success, startTime, turns } = before[i]!;
      const shown = { status: 'CANCELLED', attempt: 1, metrics, result, reward, success, startTime, turns };
      expect(await scene.rollout(id)).toMatchObject(shown);
    }
    expect(await scene.rollout(ids[3]!)).toMatchObject({ status: 'CANCELLED', attempt: 0, result: undefined });
  });

  it('F-49: a success concurrent with requeues leaves no sibling PENDING', async () => {
    for (let round = 0; round < dose(4, 8); round += 1) {
      const { scene, stage } = await fresh();
      await scene.queue(stage, 6, { onSuccess: 'CANCEL_PENDING' });
      const [winner, ...others] = await scene.claims({ count: 5 });
      await Promise.all([
        scene.complete(winner!, { result: succeeded }),
        ...others.map((claim) => scene.release(tokenOf(claim))),
        scene.claims({ count: 2 }),
      ]);
      const rollouts = await scene.rollouts({ stageId: stage.id });
      for (const rollout of rollouts.filter(({ status }) => status === 'INITIALIZING')) {
        await scene.release({ id: rollout.id, attempt: rollout.attempt });
      }
      const statuses = (await scene.rollouts({ stageId: stage.id })).map(({ status }) => status);
      expect(statuses.sort()).toEqual(['CANCELLED', 'CANCELLED', 'CANCELLED', 'CANCELLED', 'CANCELLED', 'COMPLETED']);
      const group = await scene.store.getGroup(scene.namespace, { stageId: stage.id, number: 0n });
      expect(group?.statistics).toMatchObject({ completed: 1n, cancelled: 5n });
      const [row] = await on.sql.rows(
        `select terminal_rollouts as n from groups where namespace = '${scene.namespace}'`,
      );
      expect(Number(row?.n)).toBe(6);
    }
  });

  /** Siblings of one group: the first was completed without success, the others are PENDING. */
  const judging = async (count: number, fields: Partial<NewRollout> = {}) => {
    const here = await fresh();
    const { scene, stage } = here;
    await scene.task('t');
    const [state, shot] = ['state', 'shot'] as const;
    for (const type of [state, shot]) await scene.validator('t', type);
    const [id = '', ...others] = await scene.queue(stage, count, {
      taskId: 't',
      onSuccess: 'CANCEL_PENDING',
      ...fields,
    });
    await scene.complete(await scene.claimOne(), { result: failed });
    const record = (name: string, success: boolean) => {
      const nothing = { query: '', expectedResult: '', actualResult: '', errorMessage: '', detailsJson: '' };
      const validation: NewValidation = { name, success, advisory: false, executionMs: undefined, ...nothing };
      return scene.store.recordValidation(scene.namespace, id, undefined, validation);
    };
    const override = (success: boolean | undefined, of = id) =>
      scene.store.overrideValidation(scene.caller, of, undefined, { success, reason: 'seen', actor: 'Ann' });
    const statuses = () => Promise.all(others.map(async (other) => (await scene.rollout(other)).status));
    return { ...here, id, others, state, shot, record, override, statuses };
  };

  it('Q5, F-49: the same holds if validations make a rollout a success after its completion', async () => {
    const { scene, stage, others, state, shot, record, statuses } = await judging(3);
    const [other = ''] = await scene.queue(stage, 1, { groupNumber: 1n });
    await record(shot, false);
    await record(state, true);
    expect(await statuses()).toEqual(['PENDING', 'PENDING']);
    const { rollout } = await record(shot, true);
    expect(rollout).toMatchObject({ status: 'COMPLETED', success: true });
    for (const id of others) {
      expect(await scene.rollout(id)).toMatchObject({
        status: 'CANCELLED',
        statusMessage: 'rollout 0 of its group succeeded',
        endTime: rollout.updateTime,
      });
      expect((await scene.history('ROLLOUT', { id })).at(-1)).toMatchObject({
        oldStatus: 'PENDING',
        newStatus: 'CANCELLED',
        actor: 'anabranch',
        changeTime: rollout.updateTime,
      });
    }
    expect((await scene.rollout(other)).status).toBe('PENDING');
    const group = await scene.store.getGroup(scene.namespace, { stageId: stage.id, number: 0n });
    expect(group).toMatchObject({ statistics: { pending: 0n, completed: 1n, cancelled: 2n } });
    expect(await scene.claims({ count: 3 })).toMatchObject([{ rollout: { id: other } }]);
  });

  it('Q5, F-49: the same holds for an override, and watchers are notified', async () => {
    const { scene, run, stage, others, override, statuses } = await judging(4);
    const live = await scene.claimOne();
    const notified: unknown[] = [];
    const stop = scene.store.onChange((hint) => notified.push(hint));
    await override(true);
    stop();
    expect(notified).toContain(runHint(run.key));
    expect(await statuses()).toEqual(['INITIALIZING', 'CANCELLED', 'CANCELLED']);
    expect((await scene.history('ROLLOUT', { id: others[1]! })).at(-1)).toMatchObject({ newStatus: 'CANCELLED' });
    expect(await scene.release(tokenOf(live))).toMatchObject({ status: 'CANCELLED' });
    const [row] = await on.sql.rows(`select terminal_rollouts as n from groups where stage = ${stage.key}`);
    expect(Number(row?.n)).toBe(4);
  });

  it('F-49: a rollout that is not completed is not a success, and under CONTINUE a success cancels none', async () => {
    const { scene, override, statuses } = await judging(4);
    const [first, second] = (await scene.claims({ count: 2 })) as [Claim, Claim];
    await scene.fail(second);
    await override(true, second.rollout.id);
    await override(true, first.rollout.id);
    expect(await statuses()).toEqual(['INITIALIZING', 'FAILED', 'PENDING']);
    await scene.complete(first);
    expect(await statuses()).toEqual(['COMPLETED', 'FAILED', 'CANCELLED']);
    const other = await judging(2, { onSuccess: 'CONTINUE' });
    await other.record(other.state, true);
    await other.override(true);
    expect(await other.statuses()).toEqual(['PENDING']);
  });

  it('F-49: only the transition to success cancels: a sibling retried later waits, even if the success is judged again', async () => {
    const { scene, others, state, record, override, statuses } = await judging(3);
    await override(true);
    await scene.retry({ id: others[0]!, attempt: 0 });
    await record(state, true);
    await override(true);
    expect(await statuses()).toEqual(['PENDING', 'CANCELLED']);
    await override(false);
    await override(true);
    expect(await statuses()).toEqual(['CANCELLED', 'CANCELLED']);
  });

  it('F-49: a withdrawn success restores nothing: cancelled siblings stay so until retried, requeued ones stay PENDING', async () => {
    const { scene, others, override, statuses } = await judging(3);
    const live = await scene.claimOne();
    await override(true);
    await override(undefined);
    expect(await statuses()).toEqual(['INITIALIZING', 'CANCELLED']);
    expect((await scene.history('ROLLOUT', { id: others[1]! })).map(({ newStatus }) => newStatus)).toEqual([
      'PENDING',
      'CANCELLED',
    ]);
    expect(await scene.release(tokenOf(live))).toMatchObject({ status: 'PENDING' });
    expect(await scene.retry({ id: others[1]!, attempt: 0 })).toMatchObject({ status: 'PENDING' });
  });

  const textsIn = async (work: () => Promise<unknown>) =>
    on.engine === 'postgres' ? textsOf(work) : (await sqliteTextsByThread(work)).serving;

  it('F-49: successes, additions, cancellations and requeues in one group, all at once, never deadlock', async () => {
    const { scene, stage } = await fresh();
    // Cancelled by the policy before, with another message.
    const refused: string[] = [];
    const texts = await textsIn(async () => {
      for (let round = 0; round < dose(3, 12); round += 1) {
        const group = { groupNumber: BigInt(round), onSuccess: 'CANCEL_PENDING' } as const;
        await scene.queue(stage, 6, group);
        const claims = await scene.claims({ count: 6 });
        const added = Array.from({ length: 12 }, (_, i) => ({ ...group, number: BigInt(6 + i) }));
        await Promise.all([
          ...claims.slice(0, 4).map((claim) => scene.complete(claim, { result: succeeded })),
          ...claims.slice(4).map((claim) => scene.release(tokenOf(claim))),
          ...added.map(async (each) => {
            const [rollout] = await scene.makeRollouts(stage, [each]);
            await scene.cancel(rollout!.rolloutId).catch(({ reason }) => refused.push(reason));
          }),
        ]);
      }
    });
    // Postgres resolves a deadlock by rolling back one transaction, which the store then retries.
    expect(texts.filter((text) => text === 'rollback')).toHaveLength(refused.length);
    expect(refused.filter((reason) => reason !== 'RESULT_CONFLICT')).toEqual([]);
    const open = await scene.rollouts({ stageId: stage.id }, { statuses: ['PENDING', 'INITIALIZING', 'RUNNING'] });
    expect(open).toEqual([]);
  });

  it('F-49: a success while its run is cancelled, or while a late worker renews leases, never deadlocks', async () => {
    const refused: string[] = [];
    const texts = await textsIn(async () => {
      for (let round = 0; round < dose(4, 16); round += 1) {
        const { scene, run, stage } = await fresh();
        // Claimed first and created last: of these two orders, locks can follow only one.
        const before = Array.from({ length: 6 }, (_, i) => ({
          number: BigInt(i),
          onSuccess: 'CANCEL_PENDING' as const,
        }));
        const rollouts = await scene.makeRollouts(stage, [...before, { number: 6n, priority: 1 }]);
        const winner = await scene.claimOne();
        const leases = rollouts.map(({ rolloutId }) => ({ id: rolloutId, attempt: 1 }));
        if (round % 2 === 0) await scene.move(run, 'cancel', SILENT, { cancelRollouts: true });
        await Promise.all([
          scene.complete(winner, { result: succeeded }).catch(({ reason }) => refused.push(reason)),
          round % 2 === 0
            ? scene.store.cancelNextRollouts(scene.namespace, { runId: run.id })
            : scene.store.heartbeatRollouts(scene.caller, leases, undefined),
        ]);
      }
    });
    expect(texts.filter((text) => text === 'rollback')).toHaveLength(refused.length);
    expect(refused.filter((reason) => reason === 'DATABASE_UNAVAILABLE')).toEqual([]);
  });

  it('F-49: a verdict concurrent with requeues leaves no sibling PENDING', async () => {
    for (let round = 0; round < dose(4, 8); round += 1) {
      const { scene, stage, state, record, override } = await judging(6);
      const claims = await scene.claims({ count: 4 });
      await Promise.all([
        round % 2 === 0 ? override(true) : record(state, true),
        ...claims.map((claim) => scene.release(tokenOf(claim))),
        scene.claims({ count: 2 }),
      ]);
      const rollouts = await scene.rollouts({ stageId: stage.id });
      for (const rollout of rollouts.filter(({ status }) => status === 'INITIALIZING'))
        await scene.release({ id: rollout.id, attempt: rollout.attempt });
      const statuses = (await scene.rollouts({ stageId: stage.id })).map(({ status }) => status);
      expect(statuses).toEqual(['COMPLETED', 'CANCELLED', 'CANCELLED', 'CANCELLED', 'CANCELLED', 'CANCELLED']);
      const [row] = await on.sql.rows(`select terminal_rollouts as n from groups where stage = ${stage.key}`);
      expect(Number(row?.n)).toBe(6);
    }
  });
});
