import { expect, it } from 'vitest';
import type { NewValidation } from '../../src/store/contract/rollout.ts';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { wordStep } from '../support/steps.ts';
import { undoMigrations } from './earlier_schema.ts';
import { openOn } from './on_store.ts';
import { NO_RESULT, RolloutScene, tokenOf } from './rollout_scene.ts';
import { outsideSql } from './sql.ts';

it.each(ENGINES)(
  'M3: the migration moves verdicts, metrics and environments of a rollout to its last attempt, on %s',
  async (engine) => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    const here = new RolloutScene(store);
    const { run, stage } = await here.place();
    const taskId = await here.task('t');
    await here.validator(taskId, 'state');
    const environment = await here.environment(run);
    const [released = '', ended = '', untried = ''] = await here.queue(stage, 3, { taskId });
    const found: NewValidation = {
      ...{
        name: 'state',
        success: true,
        advisory: false,
        query: '',
        expectedResult: '',
        actualResult: '',
        executionMs: undefined,
      },
      ...{ errorMessage: '', detailsJson: '' },
    };

    /** The times at which rollouts became claimable, of attempts and of rollouts. */
    const timesOf = async () => {
      const outside = await outsideSql(database);
      const rows = await outside.rows('select rollout, number, claimable_time from attempts order by rollout, number');
      const own = await outside.rows('select key, claimable_time from rollouts order by key');
      await outside.close();
      return { rows, own };
    };

    const first = await here.claimOne();
    await here.append(first.trajectory, [wordStep(0n, 'root'), wordStep(1n, 'a', { reward: 3 })]);
    await here.start(first);
    await here.store.recordValidation(here.namespace, released, 1, found);
    await here.release(tokenOf(first));
    await here.claimOne();
    await here.store.updateRollout(here.namespace, released, 2, { metrics: new Map([['m', 1]]) });
    const judgement = { success: true, reason: 'seen', actor: 'Ann' };
    await here.store.overrideValidation(here.caller, released, 2, judgement);
    await here.release({ id: released, attempt: 2 });
    const second = await here.claims({ count: 2 });
    const endedClaim = second.find(({ rollout }) => rollout.id === ended)!;
    const result = { ...NO_RESULT, success: false, reward: Number.NEGATIVE_INFINITY };
    await here.complete(endedClaim, { result, validations: [found], metrics: new Map([['tokens', 9]]) });
    const before = await here.record(ended);
    const pending = await here.record(released);
    const times = await timesOf();
    expect(pending.rollout).toMatchObject({ status: 'INITIALIZING', attempt: 3 });
    await store.close();

    const sql = await outsideSql(database);
    const keyOf = async (id: string) => (await sql.rows(`select key from rollouts where id = '${id}'`))[0]?.key;
    await undoMigrations(sql, '0011_attempts');
    // Before this migration, data of the current attempt were stored with the rollout: validations under attempt 0,
    // others in its row.
    await sql.rows(`update validations set attempt = 0 where rollout = ${await keyOf(ended)}`);
    await sql.rows(`insert into validations (rollout, validator, namespace, advisory, success, query, expected_result, actual_result,
        error_message, details_json, record_time, attempt)
      select rollout, validator, namespace, advisory, not success, query, expected_result, actual_result, error_message, details_json,
        record_time, 0 from validations where rollout = ${await keyOf(released)}`);
    await sql.rows(`update validations set attempt = 3 where rollout = ${await keyOf(released)} and attempt = 1`);
    await sql.rows(`update rollouts set status = 'PENDING', metrics = '{"m":2}' where id = '${released}'`);
    await sql.rows(`update rollouts set metrics = '{"early":1}' where id = '${untried}'`);
    await sql.rows(`insert into rollout_environments (rollout, environment, namespace)
      select ${await keyOf(ended)}, key, namespace from environments`);
    await sql.close();

    const again = new RolloutScene(await openOn(database), here.namespace);
    const after = await again.record(ended);
    expect(after).toEqual({
      ...before,
      // The stored value is the default.
      rollout: { ...before.rollout, retryDelayMs: 1000 },
      attempts: [{ ...before.attempts[0], environmentIds: [environment] }],
      environmentIds: [environment],
    });
    const { rollout, attempts } = await again.record(released);
    expect(rollout).toMatchObject({ status: 'PENDING', attempt: 3, success: undefined, metrics: new Map() });
    expect(attempts).toMatchObject([
      { number: 1, reward: 3, success: undefined, validations: [], metrics: new Map() },
      { number: 2, reward: undefined, success: undefined, metrics: new Map() },
      { number: 3, success: false, validations: [{ attempt: 3, success: false }], metrics: new Map([['m', 2]]) },
    ]);
    const log = await again.store.listValidationOverrides(again.namespace, released, { limit: 9, after: undefined });
    expect(log).toMatchObject([{ attempt: 3, success: true }]);
    expect(await again.rollout(untried)).toMatchObject({ attempt: 0, metrics: new Map() });
    expect(attempts.map(({ startTime }) => startTime)).toEqual(pending.attempts.map(({ startTime }) => startTime));
    await again.store.close();
    expect(await timesOf()).toEqual(times);
  },
);
