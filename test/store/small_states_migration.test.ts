import { expect, it } from 'vitest';
import type { StateRef, Step } from '../../src/domain/step.ts';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep, newState, smallRef, stateRef, textObservation } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { undoMigrations } from './earlier_schema.ts';
import { openOn } from './on_store.ts';
import { putState, readWhole, Scene } from './scene.ts';
import { countRows, outsideSql } from './sql.ts';

it.each(ENGINES)(
  'S1: the migration moves small states of steps into their steps, and keeps all others, on %s',
  async (engine) => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    const scene = new Scene(store);
    const [large, both, put, broken] = [
      newState('large'.repeat(1000)),
      newState('both'),
      newState('put'),
      newState('x'),
    ];
    const content = { kind: 'state', digest: both.digest, mediaType: '', size: both.data.length } as const;
    const compressed = newState('ab'.repeat(2000));
    const made = await scene.create();
    const steps = Array.from({ length: 1100 }, (_, i): Step => {
      const states: StateRef[] = [];
      if (i % 2 === 0) states.push(smallRef(newState(`${i}`), 'even'));
      if (i % 10 === 0) states.push(stateRef(large, 'large'));
      states.push(smallRef(i === 7 ? both : newState('same')), ...(i === 8 ? [smallRef(compressed, 'zip')] : []));
      const observations = i === 7 ? [textObservation('', { content })] : [];
      return makeStep(BigInt(i), { states: states.sort((a, b) => (a.name < b.name ? -1 : 1)), observations });
    });
    await putState(store, scene.namespace, put.data);
    await putState(store, scene.namespace, both.data);
    // Segments of one step and of many, none of them full, because the former version compressed no rows.
    for (let at = 0; at < steps.length; at += at < 20 ? 1 : 250) {
      await scene.append(made, steps.slice(at, at < 20 ? at + 1 : at + 250), { states: [large] });
    }
    const branch = await scene.branch(made, 600n);
    await scene.append(branch, [
      makeStep(601n, { states: [smallRef(broken, 'broken'), smallRef(newState('branch'))] }),
    ]);
    const fence = { trajectoryId: made.id, uid: undefined, writerEpoch: undefined, mediaType: '' };
    for (const [name, { digest, data }] of Object.entries({ after: newState('attached'), big: large })) {
      await scene.store.attachState(scene.caller, { ...fence, stepNumber: 9n, name, digest, data });
    }
    const look = async (here: Scene) => {
      const lineage = await here.lineage(branch);
      const states = [];
      for (const name of ['env', 'even', 'large', 'zip', 'after', 'big']) {
        const which = { name, from: 0n, limit: 2000 };
        const found = await here.store.listStepStates(here.namespace, made.ref.tree, lineage, which);
        states.push(
          found.map(({ state: { data, ...state }, ...each }) => ({ ...each, state, text: data && textOf(data) })),
        );
      }
      return { made: await here.steps(made), branch: await here.steps(branch), states };
    };
    const sql = await outsideSql(database);
    // Earlier versions did not store it.
    await sql.rows('update attached_states set attach_time = null');
    const before = await look(scene);
    expect(before.states.map((each) => each.length)).toEqual([602, 301, 61, 1, 1, 1]);
    const rowsBefore = await countRows(sql);
    // As migration 38 leaves them.
    await sql.rows('update segments set body_bytes = octet_length(body)');
    const dump = () => sql.rows('select * from segments order by tree, trajectory, first_step_number');
    const [segmentsBefore, attachedBefore] = [
      await dump(),
      await sql.rows('select * from attached_states order by name'),
    ];
    await store.close();

    await undoMigrations(sql, '0020_small_states');
    const former = await countRows(sql);
    expect(former.step_states).toBe(rowsBefore.state_refs! - 1 + 1100 + 550 + 1 + 2 + 1);
    const blob = (hex: string) => (engine === 'sqlite' ? `x'${hex}'` : `'\\x${hex}'`);
    await sql.rows(`update states set data = ${blob('ff')} where digest = ${blob(broken.digest)}`);
    const again = new Scene(await openOn(database), scene.namespace);
    expect(await look(again)).toEqual(before);
    expect(await sql.rows('select * from attached_states order by name')).toEqual(attachedBefore);
    const own = Number(segmentsBefore.at(-1)?.trajectory);
    const others = (rows: Record<string, unknown>[]) => rows.filter(({ trajectory }) => Number(trajectory) !== own);
    const byColumn = (rows: Record<string, unknown>[]) => rows.map((row) => ({ ...row, state_names: namesOf(row) }));
    expect(byColumn(others(await dump()))).toEqual(byColumn(others(segmentsBefore)));
    // The damaged state keeps its reference, and fails as before.
    expect(await countRows(sql)).toMatchObject({ state_refs: rowsBefore.state_refs! + 1 });
    await expect(again.store.readState(scene.namespace, broken.digest, 0)).rejects.toMatchObject({
      reason: 'STATE_CORRUPT',
    });
    expect(await readWhole(again.store, scene.namespace, put.digest)).toEqual(Buffer.from(put.data));
    await collectUnused(again.store);
    expect((await sql.rows('select size from states order by size')).map(({ size }) => Number(size))).toEqual([
      1, 4, 5000,
    ]);
    expect(await readWhole(again.store, scene.namespace, both.digest)).toEqual(Buffer.from(both.data));
    expect(await again.append(made, steps)).toMatchObject({ duplicates: steps.length });
    await again.store.close();
    await sql.close();
  },
);

function textOf(data: Uint8Array): string {
  return Buffer.from(data).toString();
}

function namesOf(row: Record<string, unknown>): string[] {
  return (JSON.parse(`${row.state_names}`) as unknown[]).map((run) => JSON.stringify(run)).sort();
}
