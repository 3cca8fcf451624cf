import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { statementsOf } from './statement_count.ts';

/** What AppendBatch needs of the store. */
describeStore('entries of AppendBatch', (on) => {
  const writer = (writerId: string, takeOverEpoch?: bigint) => ({ writer: { writerId, takeOverEpoch } });

  it('W14: finds the visible trajectories of a namespace by their ids', async () => {
    const scene = on.scene();
    const [one, two, deleted] = [await scene.create(), await scene.create(), await scene.create()];
    await scene.store.deleteTrajectory(scene.namespace, deleted.id, 'REFUSE');
    const ids = [one.id, randomUUID(), two.id, deleted.id];
    const found = await scene.store.findTrajectoryRefs(scene.namespace, ids);
    expect(new Map(found)).toEqual(
      new Map([
        [one.id, one.ref],
        [two.id, two.ref],
      ]),
    );
    expect((await scene.store.findTrajectoryRefs(randomUUID(), ids)).size).toBe(0);
    expect((await scene.store.findTrajectoryRefs(scene.namespace, [])).size).toBe(0);
  });

  it('W14, F1: a writer is granted the next epoch in the transaction of its steps, which have that epoch', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const outcomes = await scene.store.append(
      [
        scene.batch(made, [wordStep(1n, 'b')], writer('one')),
        scene.batch(made, [wordStep(2n, 'c')], writer('one')),
        scene.batch(made, [], writer('two', 2n)),
        scene.batch(made, [wordStep(3n, 'd')], { writerEpoch: 3n }),
      ],
      'never',
    );
    expect(outcomes).toMatchObject([
      { kind: 'committed', epoch: 1n, uid: made.uid, nextStepNumber: 2n },
      { kind: 'committed', epoch: 2n, uid: made.uid, nextStepNumber: 3n },
      { kind: 'committed', epoch: 3n, uid: made.uid, nextStepNumber: 3n },
      { kind: 'committed', epoch: undefined, uid: made.uid, nextStepNumber: 4n },
    ]);
    expect(await scene.get(made.id)).toMatchObject({ writerId: 'two', writerEpoch: 3n, nextStepNumber: 4n });
    expect((await scene.steps(made)).map(({ step }) => step.writerEpoch)).toEqual([0n, 1n, 2n, 3n]);
    expect(await scene.append(made, [wordStep(4n, 'e')], { writerEpoch: 3n })).toMatchObject({ nextStepNumber: 5n });
  });

  it('W14: a refused batch grants no epoch, and a fenced writer stores nothing', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const outcomes = await scene.store.append(
      [
        scene.batch(made, [wordStep(5n, 'gap')], { ...writer('one'), independent: true }),
        scene.batch(made, [makeStep(1n, { states: [stateRef(newState(Buffer.alloc(LIMITS.smallStateBytes)))] })], {
          ...writer('one'),
          independent: true,
        }),
        scene.batch(made, [wordStep(1n, 'b')], { ...writer('two'), independent: true }),
        scene.batch(made, [wordStep(2n, 'c')], { ...writer('one'), independent: true }),
      ],
      'never',
    );
    expect(outcomes).toMatchObject([
      { kind: 'refused', error: { reason: 'STEP_GAP' } },
      { kind: 'refused', error: { reason: 'STATE_NOT_FOUND' } },
      { kind: 'committed', epoch: 1n },
      { kind: 'refused', error: { reason: 'WRITER_FENCED', metadata: { writer_id: 'two', writer_epoch: '1' } } },
    ]);
    expect(await scene.get(made.id)).toMatchObject({ writerId: 'two', writerEpoch: 1n, nextStepNumber: 2n });
  });

  it('W14: an independent batch is stored though an earlier one of its trajectory was refused', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const [gap, next] = [wordStep(5n, 'gap'), wordStep(1n, 'b')];
    const decided = async (independent: boolean) => {
      const batches = [gap, next].map((step) => scene.batch(made, [step], { independent }));
      return (await scene.store.append(batches, 'never')).map(({ kind }) => kind);
    };
    expect(await decided(false)).toEqual(['refused', 'refused']);
    expect(await decided(true)).toEqual(['refused', 'committed']);
  });

  it('W14, S2: a state is stored though the one before it, whose changes it would be, was refused', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const bytes = Buffer.alloc(2 * LIMITS.smallStateBytes * 16, 'state of an environment ');
    const changed = Buffer.concat([bytes, Buffer.from('changed')]);
    const entry = (at: bigint, data: Uint8Array) => {
      const state = newState(data);
      return scene.batch(made, [makeStep(at, { states: [stateRef(state)] })], {
        states: [state],
        independent: true,
      });
    };
    const outcomes = await scene.store.append([entry(7n, bytes), entry(1n, changed)], 'never');
    expect(outcomes.map(({ kind }) => kind)).toEqual(['refused', 'committed']);
    const [, stored] = await scene.steps(made);
    expect(stored?.step.states[0]).toMatchObject({ size: changed.length });
  });

  if (on.engine === 'postgres')
    it('W14: grants of many trajectories take a handful of statements on Postgres', async () => {
      const scene = on.scene();
      const cost = async (count: number) => {
        const made = await Promise.all(Array.from({ length: count }, () => scene.createWith(['a', 'b'])));
        const batches = made.map((each) => scene.batch(each, [wordStep(2n, 'c')], writer('one')));
        return statementsOf(on.engine, () => scene.store.append(batches, 'never'));
      };
      await cost(16);
      expect(await cost(64)).toBe(await cost(16));
    });
});
