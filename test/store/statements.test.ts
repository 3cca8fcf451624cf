import { expect, it } from 'vitest';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { describeStore, openOn } from './on_store.ts';
import { Scene } from './scene.ts';
import { statementsOf as countStatements } from './statement_count.ts';

/**
 * How many statements a call takes: a deep lineage takes as many as a flat one, and a large group as many as a small
 * one.
 */
describeStore('statements', (on) => {
  const statementsOf = (work: () => Promise<unknown>) => countStatements(on.engine, work);

  it('RD1: a page over the steps of forty owners takes the statements of a page of one owner', async () => {
    const scene = on.scene();
    const flat = await scene.create();
    await scene.append(
      flat,
      Array.from({ length: 41 }, (_, i) => wordStep(BigInt(i), `${i}`)),
    );
    let deep = await scene.createWith(['0']);
    for (let depth = 1; depth <= 40; depth += 1) {
      deep = await scene.branch(deep, BigInt(depth - 1));
      await scene.append(deep, [wordStep(BigInt(depth), `${depth}`)]);
    }
    const range = { from: 0n, to: 41n, maxSteps: 1000, maxBytes: 1e6 };
    const read = async (trajectory: typeof deep) => {
      const lineage = await scene.lineage(trajectory);
      return statementsOf(async () => {
        const steps = await scene.store.readSteps(scene.namespace, trajectory.ref.tree, lineage, range, 'FULL');
        expect(steps).toHaveLength(41);
      });
    };
    expect(await read(deep)).toBe(await read(flat));
    expect(await read(deep)).toBeLessThanOrEqual(2);
    expect(await statementsOf(() => scene.store.getLineage(scene.namespace, deep.ref))).toBe(1);
  });

  it('W7: a group takes a handful of statements on Postgres, however many streams; on SQLite none waits for another', async () => {
    const scene = on.scene();
    const state = newState('shared');
    const append = async (count: number) => {
      const made = await Promise.all(Array.from({ length: count }, () => scene.create()));
      const batches = made.map((each, i) =>
        scene.batch(each, [makeStep(0n, { states: [stateRef(state)] }), wordStep(1n, `${i}`)], { states: [state] }),
      );
      return statementsOf(() => scene.store.append(batches, 'never'));
    };
    const few = await append(2);
    const many = await append(256);
    expect(few).toBeLessThan(20);
    // Rows are sent 64 to a statement.
    if (on.engine === 'postgres') expect(many).toBeLessThan(few + 20);
  });

  it('O2: a branch takes the same statements however long and deep its source is', async () => {
    const scene = on.scene();
    const short = await scene.createWith(['a', 'b']);
    const long = await scene.create();
    await scene.append(
      long,
      Array.from({ length: 2000 }, (_, i) => wordStep(BigInt(i), 'x')),
    );
    const cost = (source: typeof short, at: bigint) => statementsOf(() => scene.branch(source, at));
    expect(await cost(long, 1999n)).toBe(await cost(short, 1n));
  });

  if (on.engine === 'postgres')
    it('W7: a group of plain steps takes one statement on Postgres, and a transaction for what has changed', async () => {
      const scene = on.scene();
      const other = await openOn(on.database);
      const elsewhere = new Scene(other, scene.namespace);
      try {
        const made = await Promise.all(Array.from({ length: 130 }, () => scene.createWith(['0'])));
        const group = (number: bigint, of = made) =>
          scene.appendAll(of.map((each) => scene.batch(each, [wordStep(number, `${number}`)])));
        expect(await statementsOf(() => group(1n, made.slice(0, 2)))).toBe(1);
        expect(await statementsOf(() => group(1n, made.slice(2)))).toBe(1);
        const sealed = made.slice(7, 9);
        for (const each of sealed) await elsewhere.seal(each);
        const both = await statementsOf(() => group(2n));
        expect(both).toBe(1 + (await statementsOf(() => group(2n, sealed))));
        const ends = await Promise.all(made.map(async ({ id }) => (await scene.get(id)).nextStepNumber));
        expect(ends).toEqual(made.map((each) => (sealed.includes(each) ? 2n : 3n)));
      } finally {
        await other.close();
      }
    });

  if (on.engine === 'postgres')
    it('W7: a single step, as from a client that waits for each ack, takes one statement on Postgres', async () => {
      const scene = on.scene();
      const made = await scene.create();
      await scene.append(made, [wordStep(0n, '0')]);
      expect(await statementsOf(() => scene.append(made, [wordStep(1n, '1')]))).toBe(1);
    });
});
