import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import type { LeaseToken, NewValidation, RolloutChanges } from '../../src/store/contract/rollout.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { NO_RESULT, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows } from './sql.ts';

const ALL = { limit: 1000, after: undefined };
const NO_SPAN = { startTime: undefined, endTime: undefined };

function newValidation(name: string, success: boolean, fields: Partial<NewValidation> = {}): NewValidation {
  return {
    name,
    success,
    advisory: false,
    query: '',
    expectedResult: '',
    actualResult: '',
    executionMs: undefined,
    errorMessage: '',
    detailsJson: '',
    ...fields,
  };
}

describeStore('validations', (on) => {
  /**
   * A rollout whose first attempt was claimed, of a task with two validators that decide and one advisory validator.
   */
  const fresh = async () => {
    const here = new RolloutScene(on.store);
    const { run, stage } = await here.place();
    const task = await here.task('t');
    const [state, shot, hint] = ['state', 'shot', 'hint'] as const;
    const ids = { state: await here.validator(task, state), shot: await here.validator(task, shot) };
    await here.validator(task, hint, true);
    const [id = ''] = await here.queue(stage, 1, { taskId: task });
    const claim = await here.claimOne();
    const record = (name: string, success: boolean, attempt?: number) =>
      here.store.recordValidation(here.namespace, id, attempt, newValidation(name, success));
    const verdictOf = async () => {
      const { validationPassed, override, success } = await here.rollout(id);
      return [validationPassed, override?.success, success];
    };
    const override = (success: boolean | undefined, attempt?: number) =>
      here.store.overrideValidation(here.caller, id, attempt, { success, reason: 'seen', actor: 'Ann' });
    const update = (attempt: number | undefined, changes: RolloutChanges) =>
      here.store.updateRollout(here.caller, id, attempt, changes);
    return { here, run, stage, state, shot, hint, ids, id, claim, record, override, update, verdictOf };
  };
  const reason = (call: Promise<unknown>) => refusalOf(call).then((refusal) => refusal.reason);

  it('C-38, C-45: one row for each attempt and name, however often it is recorded; its input is that of the validator', async () => {
    const { here, id, state, ids } = await fresh();
    const details = { actualResult: 'off', executionMs: 12, errorMessage: 'late', detailsJson: '{"x":1}' };
    const first = await here.store.recordValidation(
      here.namespace,
      id,
      undefined,
      newValidation(state, false, details),
    );
    expect(first.validation).toMatchObject({
      name: 'state',
      validatorId: ids.state,
      advisory: false,
      success: false,
      query: 'is it state?',
      expectedResult: 'yes',
      ...details,
    });
    const again = newValidation(state, true, { query: 'own words', expectedResult: '1' });
    const { validation, rollout } = await here.store.recordValidation(here.namespace, id, undefined, again);
    expect(validation).toMatchObject({ success: true, query: 'own words', expectedResult: '1', actualResult: '' });
    expect(validation.executionMs).toBeUndefined();
    expect(validation.recordTime).toBeGreaterThan(first.validation.recordTime);
    expect(rollout).toEqual(await here.rollout(id));
    expect((await here.record(id)).validations).toEqual([validation]);
    await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        here.store.recordValidation(here.namespace, id, undefined, newValidation(state, i % 2 === 0)),
      ),
    );
    expect((await countRows(on.sql, here.namespace)).validations).toBe(1);
  });

  it('M3: all validations that are not advisory must succeed; the flag of the result decides only without any', async () => {
    const { here, id, claim, state, shot, hint, record, verdictOf } = await fresh();
    expect(await verdictOf()).toEqual([undefined, undefined, undefined]);
    await record(hint, false);
    expect(await verdictOf()).toEqual([undefined, undefined, undefined]);
    await here.complete(claim, { result: { ...NO_RESULT, success: false, agentReportedSuccess: true } });
    expect(await verdictOf()).toEqual([undefined, undefined, false]);
    await record(state, true);
    expect(await verdictOf()).toEqual([true, undefined, true]);
    await record(shot, false);
    expect(await verdictOf()).toEqual([false, undefined, false]);
    await record(shot, true);
    expect(await verdictOf()).toEqual([true, undefined, true]);
    expect((await here.rollout(id)).result).toMatchObject({ success: false, agentReportedSuccess: true });
    expect((await here.record(id)).validations.map(({ name }) => name)).toEqual(['hint', 'shot', 'state']);
  });

  it('M3: validations with free names judge like those of validators, also of a rollout without a task', async () => {
    const { here, stage, state } = await fresh();
    const [bare = ''] = await here.queue(stage, 1, { groupNumber: 1n });
    const claim = await here.claimOne();
    const record = (name: string, success: boolean, fields: Partial<NewValidation> = {}) =>
      here.store.recordValidation(here.namespace, bare, undefined, newValidation(name, success, fields));
    const details = { query: 'is it?', expectedResult: 'yes', actualResult: 'no' };
    const advised = await record('hint', false, { advisory: true });
    expect(advised.validation).toMatchObject({ name: 'hint', validatorId: '', advisory: true, query: '' });
    expect(advised.rollout.validationPassed).toBeUndefined();
    // The type of a validator of another task is a free name like any other.
    const failed = await record(state, false, details);
    expect(failed.validation).toMatchObject({ name: state, validatorId: '', advisory: false, attempt: 1, ...details });
    expect(failed.rollout).toMatchObject({ validationPassed: false, success: false });
    const passed = await record(state, true);
    expect(passed.validation).toMatchObject({ success: true, query: '', expectedResult: '', actualResult: '' });
    expect(passed.rollout).toMatchObject({ validationPassed: true, success: true });
    const validations = [newValidation('Z', true), newValidation('ä', false, { advisory: true })];
    const done = await here.complete(claim, { validations, result: { ...NO_RESULT, success: false } });
    expect(done).toMatchObject({ status: 'COMPLETED', validationPassed: true, success: true });
    const all = (await here.record(bare)).validations;
    expect(all.map(({ name, success }) => [name, success])).toEqual([
      ['Z', true],
      ['hint', false],
      [state, true],
      ['ä', false],
    ]);
    expect((await record('ä', false)).rollout.success, 'it is not advisory any more').toBe(false);
  });

  it('M3: for a validator of the task its own advisory flag counts, not that of the validation; a free name may stand beside it', async () => {
    const { here, id, state, hint, ids, verdictOf } = await fresh();
    const record = (name: string, success: boolean, advisory: boolean) =>
      here.store.recordValidation(here.namespace, id, undefined, newValidation(name, success, { advisory }));
    expect((await record(hint, false, false)).validation.advisory).toBe(true);
    const own = await record(state, true, true);
    expect(own.validation).toMatchObject({ validatorId: ids.state, advisory: false });
    expect(await verdictOf()).toEqual([true, undefined, true]);
    await record('State', false, false);
    expect(await verdictOf()).toEqual([false, undefined, false]);
  });

  it(`M3: an attempt has at most ${LIMITS.freeValidations} validations under free names, beside those of validators`, async () => {
    const { here, id, claim, state, record } = await fresh();
    const names = Array.from({ length: LIMITS.freeValidations }, (_, i) => `free ${i}`);
    for (const name of names.slice(1)) await record(name, true);
    const two = ['free 0', 'one more'].map((name) => newValidation(name, true));
    const refused = await refusalOf(here.complete(claim, { validations: two }));
    expect(refused).toMatchObject({ reason: 'INVALID_REQUEST', violations: [{ field: 'validations' }] });
    expect(await here.rollout(id)).toMatchObject({ status: 'INITIALIZING' });
    await record('free 0', true);
    const recorded = await refusalOf(record('one more', true));
    expect(recorded).toMatchObject({ reason: 'INVALID_REQUEST', violations: [{ field: 'validation.name' }] });
    await record('free 0', false);
    await record(state, true);
    expect((await here.record(id)).validations.map(({ name }) => name)).toEqual([...names, state].sort());
  });

  it('M3: a free name that became the type of a validator of the task refers to that validator from then on', async () => {
    const { here, id, record } = await fresh();
    expect((await record('late', false)).validation).toMatchObject({ validatorId: '', query: '' });
    const validatorId = await here.validator('t', 'late', true);
    expect((await here.record(id)).validations).toMatchObject([{ validatorId: '', advisory: false }]);
    await record('late', true);
    expect((await here.record(id)).validations).toMatchObject([
      { name: 'late', validatorId, advisory: true, success: true, query: 'is it late?' },
    ]);
  });

  it('M3: results of a removed validator stay, without its id, and its type is a free name from then on', async () => {
    const { here, id, state, record, verdictOf } = await fresh();
    await record(state, false);
    const before = await here.record(id);
    const verdict = await verdictOf();
    await here.store.upsertTasks(here.namespace, [{ id: 't', removedValidators: [state] }]);
    const { validations } = await here.record(id);
    expect(validations).toEqual(before.validations.map((each) => ({ ...each, validatorId: '' })));
    expect(await verdictOf()).toEqual(verdict);
    expect((await record(state, false)).validation).toMatchObject({ name: state, validatorId: '' });
  });

  it('past verdicts do not change when a validator becomes advisory later', async () => {
    const { here, id, state, record, verdictOf } = await fresh();
    await record(state, false);
    const changed = new Map([['state', { newId: randomUUID(), advisory: true }]]);
    await here.store.upsertTasks(here.namespace, [{ id: 't', validators: changed }]);
    expect(await verdictOf()).toEqual([false, undefined, false]);
    expect((await here.record(id)).validations[0]?.advisory).toBe(false);
    await record(state, false);
    expect(await verdictOf()).toEqual([undefined, undefined, undefined]);
  });

  it('M3: a verdict that arrives between two attempts belongs to the attempt that ended, and never decides the next one', async () => {
    const { here, id, state, record, override, verdictOf } = await fresh();
    await here.release({ id, attempt: 1 });
    expect((await record(state, true)).validation.attempt).toBe(1);
    expect((await override(true)).override.attempt).toBe(1);
    expect(await verdictOf(), 'while PENDING').toEqual([undefined, undefined, undefined]);
    const second = await here.claimOne();
    expect(second.rollout).toMatchObject({ attempt: 2, success: undefined, override: undefined });
    const done = await here.complete(second, { result: { ...NO_RESULT, success: false } });
    expect(done).toMatchObject({ attempt: 2, success: false, validationPassed: undefined, override: undefined });
    const { attempts } = await here.record(id);
    expect(attempts.map(({ success, override: stands }) => [success, stands?.success])).toEqual([
      [true, true],
      [false, undefined],
    ]);
  });

  it('M3: each attempt keeps its own validations, override, result, verdict, metrics, timings and environments', async () => {
    const { here, run, id, claim, state, shot, record, override, update } = await fresh();
    const [first, second] = [await here.environment(run), await here.environment(run)];
    const span = { startTime: 1n, endTime: 2n };
    await record(state, true);
    await override(true);
    await update(1, {
      metrics: new Map([['tokens', 7]]),
      timings: new Map([['task', span]]),
      environmentIds: [first],
    });
    await here.append(claim.trajectory, [wordStep(0n, 'root'), wordStep(1n, 'a', { reward: 3 })]);
    await here.release({ id, attempt: 1 });
    const next = await here.claimOne();
    expect(next.rollout).toMatchObject({ metrics: new Map(), timings: new Map(), reward: undefined, turns: 0n });
    await record(shot, false);
    await update(undefined, { environmentIds: [second] });
    const result = { ...NO_RESULT, reward: 2, errors: ['no such button'], summaryJson: '{"turns":3}' };
    await here.fail(next, { result, metrics: new Map([['tokens', 1]]) });
    const { attempts, rollout } = await here.record(id);
    const details = attempts.map(({ validations }) => validations.map((each) => [each.name, each.success]));
    expect(details).toEqual([[['state', true]], [['shot', false]]]);
    expect(attempts).toMatchObject([
      {
        override: { ordinal: 0n, attempt: 1, success: true },
        result: undefined,
        success: true,
        reward: 3,
        environmentIds: [first],
        metrics: new Map([['tokens', 7]]),
        timings: new Map([['task', span]]),
      },
      {
        override: undefined,
        result,
        success: false,
        reward: 2,
        environmentIds: [second],
        metrics: new Map([['tokens', 1]]),
        timings: new Map(),
      },
    ]);
    expect(rollout).toMatchObject({ result, success: false, reward: 2, metrics: new Map([['tokens', 1]]) });
    await here.retry({ id, attempt: 2 });
    expect((await here.record(id)).attempts, 'a retry changes no attempt').toEqual(attempts);
  });

  it('Q1: while PENDING after a release or a retry, a rollout shows only number and trajectory of its last attempt', async () => {
    const { here, run, id, claim, state, record, update } = await fresh();
    const environment = await here.environment(run);
    const leave = async (token: LeaseToken) => {
      await record(state, true);
      await update(token.attempt, { metrics: new Map([['m', 1]]), timings: new Map([['t', NO_SPAN]]) });
      await update(token.attempt, { environmentIds: [environment] });
    };
    const isBare = async (attempt: number, trajectoryId: string) => {
      const { rollout, validations, environmentIds } = await here.record(id);
      expect(rollout).toMatchObject({ status: 'PENDING', attempt, trajectoryId });
      expect(rollout).toMatchObject({ success: undefined, validationPassed: undefined, override: undefined });
      expect(rollout).toMatchObject({ result: undefined, reward: undefined, metrics: new Map(), timings: new Map() });
      expect([validations, environmentIds]).toEqual([[], []]);
    };
    await leave(tokenOf(claim));
    await here.append(claim.trajectory, [wordStep(0n, 'root'), wordStep(1n, 'a', { reward: 3 })]);
    await here.release(tokenOf(claim));
    await isBare(1, claim.trajectory.id);
    const rewarded = await here.rollouts({ stageId: claim.rollout.stage.id }, { minReward: 0 });
    expect(rewarded, 'no filter finds its reward').toEqual([]);
    const second = await here.claimOne();
    await leave(tokenOf(second));
    await here.fail(second, { result: { ...NO_RESULT, reward: 1 } });
    await here.retry(tokenOf(second));
    await isBare(2, second.trajectory.id);
    // A rollout that is cancelled without another attempt ends with the values of its last one.
    await here.cancel(id);
    expect(await here.rollout(id)).toMatchObject({ status: 'CANCELLED', attempt: 2, success: true, reward: 1 });
  });

  it('M3: verdicts, metrics, timings and environments are accepted for any attempt that started, and are never LEASE_LOST', async () => {
    const { here, run, id, claim, state, record, override, update } = await fresh();
    const environment = await here.environment(run);
    await here.release(tokenOf(claim));
    const second = await here.claimOne();
    await here.complete(second, { result: { ...NO_RESULT, success: true } });
    for (const attempt of [1, 2]) {
      await record(state, false, attempt);
      await override(true, attempt);
      await update(attempt, { metrics: new Map([['late', attempt]]) });
      await update(attempt, { timings: new Map([['late', NO_SPAN]]), environmentIds: [environment] });
    }
    const { attempts, rollout } = await here.record(id);
    for (const [i, attempt] of attempts.entries()) {
      expect(attempt).toMatchObject({ success: true, override: { attempt: i + 1 }, environmentIds: [environment] });
      expect(attempt.metrics).toEqual(new Map([['late', i + 1]]));
      expect(attempt.validations).toMatchObject([{ attempt: i + 1, success: false }]);
    }
    expect(rollout).toMatchObject({ attempt: 2, validationPassed: false, success: true });
    expect(rollout.metrics).toEqual(new Map([['late', 2]]));
    await override(undefined, 1);
    const now = await here.record(id);
    expect(now.attempts.map(({ success }) => success)).toEqual([false, true]);
    expect(now.rollout.revision, 'a change of an older attempt does not change the rollout').toBe(rollout.revision);
  });

  it('Q2: other fields of a rollout require the lease, alone and with those of an attempt', async () => {
    const { here, claim, update } = await fresh();
    const metrics = new Map([['m', 1]]);
    await here.release(tokenOf(claim));
    const second = await here.claimOne();
    expect(await reason(update(1, { phase: 'late' }))).toBe('LEASE_LOST');
    expect(await reason(update(1, { phase: 'late', metrics }))).toBe('LEASE_LOST');
    expect((await here.rollout(second.rollout.id)).metrics).toEqual(new Map());
    expect(await update(2, { phase: 'now', metrics })).toMatchObject({ phase: 'now', metrics });
    expect((await here.record(second.rollout.id)).attempts[0]?.metrics).toEqual(new Map());
  });

  it('NO_ATTEMPT: attempt fields are refused before the first attempt, and for one that has not started', async () => {
    const { here, run, stage, state, id } = await fresh();
    const [unclaimed = ''] = await here.queue(stage, 1, { taskId: 't', groupNumber: 1n });
    const environmentIds = [await here.environment(run)];
    const judgement = { success: true, reason: 'seen', actor: '' };
    const before = await here.record(unclaimed);
    for (const [rollout, attempt, last] of [
      [unclaimed, undefined, '0'],
      [unclaimed, 1, '0'],
      [id, 2, '1'],
    ] as const) {
      const calls = [
        here.store.recordValidation(here.namespace, rollout, attempt, newValidation(state, true)),
        here.store.overrideValidation(here.caller, rollout, attempt, judgement),
        here.store.updateRollout(here.caller, rollout, attempt, { metrics: new Map([['m', 1]]) }),
        here.store.updateRollout(here.caller, rollout, attempt, { timings: new Map([['t', NO_SPAN]]) }),
        here.store.updateRollout(here.caller, rollout, attempt, { environmentIds }),
      ];
      for (const refusal of await Promise.all(calls.map(refusalOf))) {
        expect(refusal).toMatchObject({ reason: 'NO_ATTEMPT', metadata: { rollout, attempt: last } });
      }
    }
    expect(await here.record(unclaimed)).toEqual(before);
  });

  it('M3: validations of the last possible attempt stay valid, even if it was released', async () => {
    const { here, id, state, record, verdictOf } = await fresh();
    for (let attempt = 1; attempt <= 3; attempt += 1) {
      if (attempt > 1) await here.claimOne();
      await record(state, true, attempt);
      await here.release({ id, attempt });
    }
    expect((await here.rollout(id)).status).toBe('FAILED');
    expect(await verdictOf()).toEqual([true, undefined, false]);
    const { attempts, validations } = await here.record(id);
    expect([validations.length, ...attempts.map((attempt) => attempt.validations.length)]).toEqual([1, 1, 1, 1]);
  });

  it('C-57: one log of overrides covers all attempts, and names the attempt of each entry', async () => {
    const { here, id, claim, override } = await fresh();
    await override(true);
    await here.release(tokenOf(claim));
    await here.fail(await here.claimOne());
    await override(false);
    await override(undefined, 1);
    const log = await here.store.listValidationOverrides(here.namespace, id, ALL);
    expect(log.map(({ ordinal, attempt, success }) => [ordinal, attempt, success])).toEqual([
      [2n, 1, undefined],
      [1n, 2, false],
      [0n, 1, true],
    ]);
    expect((await here.rollout(id)).override, 'of attempt 2 it stands').toEqual(log[1]);
  });

  it('M3: a FAILED rollout is never a success, whatever its result, validations and override', async () => {
    const { here, id, stage, state, shot, claim, record, verdictOf } = await fresh();
    await here.fail(claim, { result: { ...NO_RESULT, success: true } });
    expect(await verdictOf()).toEqual([undefined, undefined, false]);
    await record(state, true);
    await record(shot, true);
    expect(await verdictOf()).toEqual([true, undefined, false]);
    const details = { success: true, reason: 'the crash came after', actor: 'Ann' };
    const { rollout, override } = await here.store.overrideValidation(here.caller, id, undefined, details);
    expect(rollout).toMatchObject({ success: false, override: { ...details, ordinal: 0n } });
    expect(await here.store.listValidationOverrides(here.namespace, id, ALL)).toEqual([override]);
    const of = { stageId: stage.id };
    expect(await here.rollouts(of, { success: true })).toEqual([]);
    expect((await here.rollouts(of, { success: false })).map((each) => each.id)).toEqual([id]);
  });

  it('C-57: an override has precedence, can be withdrawn, and its log is append-only', async () => {
    const { here, id, state, record, verdictOf } = await fresh();
    const override = (success: boolean | undefined, reasonGiven: string, actor = '') =>
      here.store.overrideValidation(here.caller, id, undefined, { success, reason: reasonGiven, actor });
    await record(state, false);
    const first = await override(true, 'seen it work', 'Ann');
    expect(first.override).toMatchObject({ ordinal: 0n, success: true, reason: 'seen it work', actor: 'Ann' });
    expect(first.rollout).toEqual(await here.rollout(id));
    expect(first.rollout.override).toEqual(first.override);
    expect(await verdictOf()).toEqual([false, true, true]);
    await record(state, true);
    await override(false, 'not so');
    expect(await verdictOf()).toEqual([true, false, false]);
    const withdrawn = await override(undefined, 'let validators decide');
    expect(withdrawn.rollout.override).toBeUndefined();
    expect(await verdictOf()).toEqual([true, undefined, true]);
    const log = await here.store.listValidationOverrides(here.namespace, id, ALL);
    expect(log.map(({ ordinal, success, actor }) => [ordinal, success, actor])).toEqual([
      [2n, undefined, 'tester'],
      [1n, false, 'tester'],
      [0n, true, 'Ann'],
    ]);
    const page = await here.store.listValidationOverrides(here.namespace, id, { limit: 1, after: 2n });
    expect(page).toEqual([log[1]]);
    await Promise.all(Array.from({ length: 20 }, (_, i) => override(i % 2 === 0, `${i}`)));
    const ordinals = (await here.store.listValidationOverrides(here.namespace, id, ALL)).map(({ ordinal }) => ordinal);
    expect(ordinals).toEqual(Array.from({ length: 23 }, (_, i) => BigInt(22 - i)));
  });

  it('refuses a verdict for an unknown resource, and stores nothing of it', async () => {
    const { here, id } = await fresh();
    const of = (rollout: string, namespace = here.namespace) =>
      here.store.recordValidation(namespace, rollout, undefined, newValidation('free', true));
    expect(await reason(of(randomUUID()))).toBe('ROLLOUT_NOT_FOUND');
    expect(await reason(of(id, 'other'))).toBe('ROLLOUT_NOT_FOUND');
    const override = { success: true, reason: 'r', actor: '' };
    expect(await reason(here.store.overrideValidation(here.caller, randomUUID(), undefined, override))).toBe(
      'ROLLOUT_NOT_FOUND',
    );
    const overrides = here.store.listValidationOverrides('other', id, ALL);
    expect(await reason(overrides)).toBe('ROLLOUT_NOT_FOUND');
    expect(await here.rollout(id)).toMatchObject({ status: 'INITIALIZING', validationPassed: undefined });
    expect((await here.record(id)).validations).toEqual([]);
  });
});
