import { DatabaseSync } from 'node:sqlite';
import { expect, it } from 'vitest';
import type { NewState } from '../../src/domain/step.ts';
import { addAggregates } from '../../src/store/sqlite/connection.ts';
import { dose } from '../support/dose.ts';
import { makeStep, newState, smallRef, stateRef, textObservation } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore } from './on_store.ts';
import { plansOf } from './postgres_plans.ts';
import { putState, type Scene } from './scene.ts';
import { countRows, sqlitePath } from './sql.ts';
import { sqliteTextsOf, textsOf } from './statement_count.ts';

const large = (text: string) => newState(text.repeat(5000));

describeStore('references to states', (on) => {
  const isMarked = async ({ namespace }: Scene, { digest }: NewState): Promise<boolean> => {
    const blob = on.engine === 'sqlite' ? `x'${digest}'` : `'\\x${digest}'`;
    const [row] = await on.sql.rows(
      `select referenced from states where namespace = '${namespace}' and digest = ${blob}`,
    );
    return Number(row?.referenced) === 1;
  };

  it('S2: a state is unreferenced in the transaction that deletes its last reference, and not before', async () => {
    const scene = on.scene();
    const [shared, own, kept] = [large('s'), large('o'), large('k')];
    const content = { kind: 'state', digest: shared.digest, mediaType: '', size: shared.data.length } as const;
    const [one, two] = [await scene.create(), await scene.create()];
    const steps = [
      makeStep(0n, { states: [stateRef(kept)] }),
      makeStep(1n, { states: [stateRef(own), stateRef(shared, 'a')] }),
    ];
    await scene.append(one, steps, { states: [shared, own, kept] });
    await scene.append(two, [makeStep(0n, { observations: [textObservation('', { content })] })]);
    const branch = await scene.branch(one, 0n);
    const marks = async () => [await isMarked(scene, kept), await isMarked(scene, own), await isMarked(scene, shared)];
    expect(await marks()).toEqual([true, true, true]);
    await scene.delete(one, 'KEEP_SHARED');
    expect(await marks()).toEqual([true, false, true]);
    await scene.delete(two);
    expect(await marks()).toEqual([true, false, false]);
    await scene.delete(branch);
    expect(await marks()).toEqual([false, false, false]);
  });

  it('S2: of two deletions at once that delete the last references, one leaves the states unreferenced', async () => {
    const scene = on.scene();
    for (let round = 0; round < dose(8, 15); round += 1) {
      const states = ['a', 'b', 'c'].map((name) => large(`${name} ${round}`));
      const made = await Promise.all([scene.create(), scene.create(), scene.create()]);
      for (const [i, each] of made.entries()) {
        const named = i === 1 ? states.toReversed() : states;
        const step = makeStep(0n, { states: named.map((state, k) => stateRef(state, `${k}`)) });
        await scene.append(each, [step], { states });
      }
      await Promise.all(made.map((each) => scene.delete(each)));
      for (const state of states) expect(await isMarked(scene, state)).toBe(false);
    }
    await collectUnused(scene.store);
    expect(await countRows(on.sql, scene.namespace)).toMatchObject({ states: 0, state_refs: 0 });
  });

  it('S2: a collection looks for references to its candidates only', async () => {
    const scene = on.scene();
    const many = Array.from({ length: 20 }, (_, i) => `(1, 1, ${i}, 'env', 'elsewhere', 999999999)`);
    for (let i = 0; i < 100; i += 1) {
      await on.sql.rows(
        `insert into state_refs (tree, trajectory, step_number, name, namespace, state)
          values ${many.join().replaceAll('(1, 1,', `(999999999, ${i},`)}`,
      );
    }
    const [deleted, put] = [large('d'), large('p')];
    const made = await scene.create();
    await scene.append(made, [makeStep(0n, { states: [stateRef(deleted)] })], { states: [deleted] });
    await putState(scene.store, scene.namespace, put.data);
    await scene.delete(made);
    const collecting = () => collectUnused(scene.store);
    if (on.engine === 'sqlite') {
      const planner = new DatabaseSync(sqlitePath(on.database));
      addAggregates(planner);
      planner.function('anabranch_now', () => '');
      const texts = (await sqliteTextsOf(collecting)).filter((text) => text.includes('state_refs'));
      const plans = texts.flatMap((text) => planner.prepare(`explain query plan ${text}`).all());
      const details = plans.map(({ detail }) => String(detail)).filter((detail) => /\br\b/.test(detail));
      expect(details).toEqual(['SEARCH r USING COVERING INDEX state_refs_by_state (state=?)']);
      planner.close();
    } else {
      const plans = await plansOf(on.database, collecting);
      const read = plans.flat().filter(({ table }) => table === 'state_refs');
      expect(read.map(({ index }) => index)).toEqual(['state_refs_by_state']);
      expect(read[0]!.rows).toBeLessThan(10);
    }
    expect(await scene.store.findStates(scene.namespace, [deleted.digest, put.digest], false)).toEqual([]);
    await on.sql.rows('delete from state_refs where tree = 999999999');
  });

  it('W9: Postgres takes all references of a group in one statement; small states need none', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = large('r');
    const named = Array.from({ length: 37 }, (_, i) => makeStep(BigInt(i), { states: [stateRef(state)] }));
    const small = makeStep(37n, { states: [smallRef(newState('small'))] });
    const textsOfAppend = on.engine === 'sqlite' ? sqliteTextsOf : textsOf;
    const count = async (work: () => Promise<unknown>) =>
      (await textsOfAppend(work)).filter((text) => /insert into (?:anabranch\.)?state_refs/.test(text)).length;
    expect(await count(() => scene.append(made, named, { states: [state] }))).toBe(on.engine === 'sqlite' ? 37 : 1);
    expect(await count(() => scene.append(made, [small]))).toBe(0);
    expect((await countRows(on.sql, scene.namespace)).state_refs).toBe(37);
  });
});
