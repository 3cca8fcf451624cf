import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { Validation } from '../../src/domain/rollout.ts';
import type { NewValidation } from '../../src/store/contract/rollout.ts';
import { describeStore } from './on_store.ts';
import { NO_RESULT, RolloutScene } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows } from './sql.ts';

const ALL = { limit: 1000, after: undefined };

function newValidation(validatorId: string, success: boolean, fields: Partial<NewValidation> = {}): NewValidation {
  return {
    validatorId,
    success,
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
  /** A rollout of a task with two validators that decide and one that is advisory. */
  const fresh = async () => {
    const here = new RolloutScene(on.store);
    const { run, stage } = await here.place();
    const task = await here.task('t');
    const [state, shot] = [await here.validator(task, 'state'), await here.validator(task, 'shot')];
    const hint = await here.validator(task, 'hint', true);
    const [id = ''] = await here.queue(stage, 1, { taskId: task });
    const record = (validatorId: string, success: boolean, attempt?: number) =>
      here.store.recordValidation(here.namespace, id, attempt, newValidation(validatorId, success));
    const verdictOf = async () => {
      const { validationPassed, override, success } = await here.rollout(id);
      return [validationPassed, override?.success, success];
    };
    return { here, run, stage, state, shot, hint, id, record, verdictOf };
  };
  const reason = (call: Promise<unknown>) => refusalOf(call).then((refusal) => refusal.reason);

  it("C-38, C-45: one row a rollout and validator, however often it is recorded; what it was asked is the validator's", async () => {
    const { here, id, state } = await fresh();
    const said = { actualResult: 'off', executionMs: 12, errorMessage: 'late', detailsJson: '{"x":1}' };
    const first = await here.store.recordValidation(here.namespace, id, undefined, newValidation(state, false, said));
    expect(first.validation).toMatchObject({
      validatorId: state,
      validatorType: 'state',
      advisory: false,
      success: false,
      query: 'is it state?',
      expectedResult: 'yes',
      ...said,
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

  it("M3: all that are not advisory must succeed; the result's own flag decides only where there is none", async () => {
    const { here, id, stage, state, shot, hint, record, verdictOf } = await fresh();
    expect(await verdictOf()).toEqual([undefined, undefined, undefined]);
    await record(hint, false);
    expect(await verdictOf()).toEqual([undefined, undefined, undefined]);
    const claim = await here.claimOne({ stageId: stage.id });
    await here.complete(claim, { result: { ...NO_RESULT, success: false, agentReportedSuccess: true } });
    expect(await verdictOf()).toEqual([undefined, undefined, false]);
    await record(state, true);
    expect(await verdictOf()).toEqual([true, undefined, true]);
    await record(shot, false);
    expect(await verdictOf()).toEqual([false, undefined, false]);
    await record(shot, true);
    expect(await verdictOf()).toEqual([true, undefined, true]);
    expect((await here.rollout(id)).result).toMatchObject({ success: false, agentReportedSuccess: true });
    expect((await here.record(id)).validations.map(({ validatorType }) => validatorType)).toEqual([
      'hint',
      'shot',
      'state',
    ]);
  });

  it('what was judged is not judged anew when a validator becomes advisory later', async () => {
    const { here, id, state, record, verdictOf } = await fresh();
    await record(state, false);
    const nothing = { query: undefined, method: undefined, expectedResult: undefined, configJson: undefined };
    const changed = { newId: randomUUID(), taskId: 't', type: 'state', ...nothing, advisory: true };
    await here.store.upsertValidators(here.namespace, [changed]);
    expect(await verdictOf()).toEqual([false, undefined, false]);
    expect((await here.record(id)).validations[0]?.advisory).toBe(false);
    await record(state, false);
    expect(await verdictOf()).toEqual([undefined, undefined, undefined]);
  });

  it('M3: only the current attempt counts; what validators said of one that is given back, or retried, stays with it', async () => {
    const { here, id, state, shot, record, verdictOf } = await fresh();
    const tokenOf = (attempt: number) => ({ id, attempt });
    const said = (validations: readonly Validation[]) =>
      validations.map(({ validatorType, success }) => `${validatorType} ${success}`);
    const shown = async () => {
      const { attempts, validations } = await here.record(id);
      return [said(validations), ...attempts.map((attempt) => said(attempt.validations))];
    };
    await here.claimOne();
    await record(state, true, 1);
    await here.release(tokenOf(1));
    expect(await shown()).toEqual([[], ['state true']]);
    expect(await verdictOf()).toEqual([undefined, undefined, undefined]);
    const second = await here.claimOne();
    await record(state, false, 2);
    await record(shot, true, 2);
    const result = { ...NO_RESULT, reward: 2, errors: ['no such button'], summaryJson: '{"turns":3}' };
    await here.fail(second, { result });
    expect(await shown()).toEqual([['shot true', 'state false'], ['state true'], []]);
    expect((await here.record(id)).attempts.map((attempt) => attempt.result)).toEqual([undefined, undefined]);
    await here.retry(tokenOf(2));
    expect(await shown()).toEqual([[], ['state true'], ['shot true', 'state false']]);
    expect((await here.record(id)).attempts.map((attempt) => attempt.result)).toEqual([undefined, result]);
    // A validator that was slow: said while nobody tries it, it is of the rollout, and goes to the attempt that it followed.
    await record(state, true);
    await here.cancel(id);
    await here.retry(tokenOf(2));
    expect(await shown()).toEqual([[], ['state true'], ['shot true', 'state true']]);
    await here.complete(await here.claimOne());
    expect(await verdictOf()).toEqual([undefined, undefined, undefined]);
  });

  it('M3: what validators said of the last attempt that there may be stands, though it was given back', async () => {
    const { here, id, state, record, verdictOf } = await fresh();
    for (let attempt = 1; attempt <= 3; attempt += 1) {
      await here.claimOne();
      await record(state, true, attempt);
      await here.release({ id, attempt });
    }
    expect((await here.rollout(id)).status).toBe('FAILED');
    expect(await verdictOf()).toEqual([true, undefined, false]);
    const { attempts, validations } = await here.record(id);
    expect([validations.length, ...attempts.map((attempt) => attempt.validations.length)]).toEqual([1, 1, 1, 0]);
  });

  it('C-57, M3: an override is of the attempt over which it was spoken: the next is judged anew, and the log tells so', async () => {
    const { here, id, verdictOf } = await fresh();
    const override = () =>
      here.store.overrideValidation(here.caller, id, { success: true, reason: 'seen', actor: 'Ann' });
    await here.claimOne();
    await override();
    await here.release({ id, attempt: 1 });
    expect(await verdictOf(), 'given back').toEqual([undefined, undefined, undefined]);
    await here.fail(await here.claimOne());
    await override();
    expect(await verdictOf(), 'without effect').toEqual([undefined, true, false]);
    await here.retry({ id, attempt: 2 });
    expect(await verdictOf(), 'retried').toEqual([undefined, undefined, undefined]);
    const log = await here.store.listValidationOverrides(here.namespace, id, ALL);
    expect(log.map(({ ordinal, success, reason, actor }) => [ordinal, success, reason, actor])).toEqual([
      [3n, undefined, 'attempt 2 is over: the next attempt is judged anew', here.caller.actor],
      [2n, true, 'seen', 'Ann'],
      [1n, undefined, 'attempt 1 is over: the next attempt is judged anew', here.caller.actor],
      [0n, true, 'seen', 'Ann'],
    ]);
  });

  it('M3: a FAILED rollout is never a success, whatever its result, validations and override say', async () => {
    const { here, id, stage, state, shot, record, verdictOf } = await fresh();
    const claim = await here.claimOne();
    await here.fail(claim, { result: { ...NO_RESULT, success: true } });
    expect(await verdictOf()).toEqual([undefined, undefined, false]);
    await record(state, true);
    await record(shot, true);
    expect(await verdictOf()).toEqual([true, undefined, false]);
    const said = { success: true, reason: 'the crash came after', actor: 'Ann' };
    const { rollout, override } = await here.store.overrideValidation(here.caller, id, said);
    expect(rollout).toMatchObject({ success: false, override: { ...said, ordinal: 0n } });
    expect(await here.store.listValidationOverrides(here.namespace, id, ALL)).toEqual([override]);
    const of = { stageId: stage.id };
    expect(await here.rollouts(of, { success: true })).toEqual([]);
    expect((await here.rollouts(of, { success: false })).map((each) => each.id)).toEqual([id]);
  });

  it('C-57: an override stands above all, can be withdrawn, and its log only grows', async () => {
    const { here, id, state, record, verdictOf } = await fresh();
    const override = (success: boolean | undefined, reasonGiven: string, actor = '') =>
      here.store.overrideValidation(here.caller, id, { success, reason: reasonGiven, actor });
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

  it('F2: a worker that lost the rollout is not heard; whoever names no attempt is', async () => {
    const { here, id, state, record, verdictOf } = await fresh();
    expect(await reason(record(state, true, 1))).toBe('LEASE_LOST');
    const claim = await here.claimOne();
    await record(state, true, 1);
    await here.release({ id, attempt: claim.rollout.attempt });
    expect(await reason(record(state, true, 1))).toBe('LEASE_LOST');
    await here.claimOne();
    expect(await reason(record(state, true, 1))).toBe('LEASE_LOST');
    expect(await verdictOf()).toEqual([undefined, undefined, undefined]);
    await record(state, false, 2);
    await record(state, true);
    expect(await verdictOf()).toEqual([true, undefined, true]);
  });

  it('refuses a verdict for what is not there, and keeps nothing of it', async () => {
    const { here, id, state, stage } = await fresh();
    const of = (rollout: string, validator: string, namespace = here.namespace) =>
      here.store.recordValidation(namespace, rollout, undefined, newValidation(validator, true));
    const foreign = await here.validator(await here.task('u'), 'state');
    const [bare = ''] = await here.queue(stage, 1, { groupNumber: 9n });
    expect(await reason(of(id, randomUUID()))).toBe('VALIDATOR_NOT_FOUND');
    expect(await reason(of(id, foreign))).toBe('VALIDATOR_NOT_FOUND');
    expect(await reason(of(bare, state))).toBe('VALIDATOR_NOT_FOUND');
    expect(await reason(of(randomUUID(), state))).toBe('ROLLOUT_NOT_FOUND');
    expect(await reason(of(id, state, 'other'))).toBe('ROLLOUT_NOT_FOUND');
    const override = { success: true, reason: 'r', actor: '' };
    expect(await reason(here.store.overrideValidation(here.caller, randomUUID(), override))).toBe('ROLLOUT_NOT_FOUND');
    const overrides = here.store.listValidationOverrides('other', id, ALL);
    expect(await reason(overrides)).toBe('ROLLOUT_NOT_FOUND');
    const claim = await here.claimOne();
    const validations = [newValidation(state, true), newValidation(foreign, true)];
    expect(await reason(here.complete(claim, { validations }))).toBe('VALIDATOR_NOT_FOUND');
    expect(await here.rollout(id)).toMatchObject({ status: 'INITIALIZING', validationPassed: undefined });
    expect((await here.record(id)).validations).toEqual([]);
  });
});
