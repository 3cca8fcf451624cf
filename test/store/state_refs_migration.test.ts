import { expect, it } from 'vitest';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep, newState, smallRef, stateRef, textObservation } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { undoMigrations } from './earlier_schema.ts';
import { openOn } from './on_store.ts';
import { putState, readWhole, Scene } from './scene.ts';
import { outsideSql } from './sql.ts';

it.each(ENGINES)('S2: the migration to row keys keeps every state and every reference, on %s', async (engine) => {
  await using database = await createMigratedDatabase(engine);
  const store = await openOn(database);
  const scene = new Scene(store);
  const states = Array.from({ length: 5 }, (_, i) => newState(`${i}`.repeat(5000 + i)));
  const [first, second, both, attached, unused] = states as [(typeof states)[0], ...typeof states] & typeof states;
  const content = { kind: 'state', digest: both!.digest, mediaType: '', size: both!.data.length } as const;
  const made = await scene.create();
  await scene.append(
    made,
    [
      makeStep(0n, {
        states: [stateRef(both!, 'agent'), stateRef(first, 'env'), smallRef(newState('small'), 'small')],
      }),
      makeStep(1n, { states: [stateRef(second!)], observations: [textObservation('', { content })] }),
    ],
    { states: [first, second!, both!] },
  );
  const fence = { trajectoryId: made.id, uid: undefined, writerEpoch: undefined, mediaType: 'image/png' };
  const { digest, data } = attached!;
  await store.attachState(scene.caller, { ...fence, stepNumber: 0n, name: 'later', digest, data });
  await putState(store, scene.namespace, unused!.data);
  const branch = await scene.branch(made, 0n);
  // Databases of earlier versions have no times of attached states.
  const look = async (here: Scene) =>
    [...(await here.steps(made)), ...(await here.steps(branch))].map(({ step, ...owned }) => ({
      ...owned,
      step: { ...step, states: step.states.map((state) => ({ ...state, attachTime: undefined })) },
    }));
  const before = await look(scene);
  const sql = await outsideSql(database);
  const refs = () =>
    sql.rows(`select r.step_number, r.name, s.digest, s.size, s.referenced from state_refs as r
      join states as s on s.key = r.state order by r.step_number, r.name`);
  const refsBefore = await refs();
  expect(refsBefore).toHaveLength(5);
  await store.close();

  await undoMigrations(sql, '0030_state_refs');
  // Nothing can be read by a reference to a state that is missing.
  await sql.rows(`insert into step_states select tree, trajectory, step_number, 'missing', 'elsewhere', digest, '', size
    from step_states where name = 'agent'`);
  const again = new Scene(await openOn(database), scene.namespace);
  expect(await refs()).toEqual(refsBefore);
  expect(await look(again)).toEqual(before);
  await collectUnused(again.store);
  for (const state of [first, second!, both!, attached!])
    expect(await readWhole(again.store, scene.namespace, state.digest)).toEqual(Buffer.from(state.data));
  expect(await again.store.findStates(scene.namespace, [unused!.digest], false)).toEqual([]);
  const next = newState('n'.repeat(5000));
  await again.append(branch, [makeStep(1n, { states: [stateRef(next)] })], { states: [next] });
  const keys = (await sql.rows('select key from states order by key')).map(({ key }) => Number(key));
  expect(new Set(keys).size).toBe(5);
  await again.delete(made, 'CASCADE');
  await collectUnused(again.store);
  expect(await sql.rows('select key from states')).toEqual([]);
  await again.store.close();
  await sql.close();
});
