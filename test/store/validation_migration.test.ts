import { expect, it } from 'vitest';
import type { NewValidation } from '../../src/store/contract/rollout.ts';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { undoMigrations } from './earlier_schema.ts';
import { openOn } from './on_store.ts';
import { NOTHING_SAID, RolloutScene } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { outsideSql } from './sql.ts';

function newValidation(name: string, success: boolean): NewValidation {
  const texts = { query: '', expectedResult: '', actualResult: 'seen', errorMessage: '', detailsJson: '{"a":1}' };
  return { name, success, advisory: false, executionMs: 3, ...texts };
}

it.each(ENGINES)(
  'M3, L5: the migration names validations by the types of their validators, and ends stay repeatable, on %s',
  async (engine) => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    const here = new RolloutScene(store);
    const { stage } = await here.place();
    const taskId = await here.task('t');
    await here.validator(taskId, 'state');
    await here.validator(taskId, 'hint', true);
    const [id = ''] = await here.queue(stage, 1, { taskId });
    const claim = await here.claimOne();
    const details = { ...NOTHING_SAID, message: 'done' };
    const validations = [newValidation('state', true), newValidation('hint', false)];
    await here.complete(claim, { details: details, validations });
    const before = await here.record(id);
    await store.close();

    const sql = await outsideSql(database);
    await undoMigrations(sql, '0017_named_validations');
    const old = await sql.rows('select * from validations');
    expect(old.map((row) => 'name' in row)).toEqual([false, false]);
    await sql.close();

    const again = new RolloutScene(await openOn(database), here.namespace);
    expect(await again.record(id)).toEqual(before);
    // The digest contained ids of validators; only message and result can still be compared.
    expect(await again.complete(claim, { details: details, validations })).toEqual(before.rollout);
    const refusal = await refusalOf(again.complete(claim, { details: { ...details, message: 'other' }, validations }));
    expect(refusal.reason).toBe('RESULT_CONFLICT');
    const free = await again.store.recordValidation(again.namespace, id, 1, newValidation('free', false));
    expect(free).toMatchObject({ validation: { validatorId: '' }, rollout: { success: false } });
    await again.store.close();
  },
);
