import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { refusalOf, type Scene } from './scene.ts';

describeStore('sealing', (on) => {
  const history = async (scene: Scene, trajectory: Trajectory) =>
    on.sql.rows(
      `select ordinal, old_status, new_status, message, actor from status_changes
       where namespace = '${scene.namespace}' and entity = ${trajectory.ref.key} order by ordinal`,
    );

  it('W5: a seal is stored in the same transaction as the steps of its batch, with its StatusChange', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const seal = { status: 'COMPLETED', message: 'done 🌊' } as const;
    const outcome = await scene.append(made, [wordStep(1n, 'b')], { seal });
    expect(outcome).toMatchObject({ nextStepNumber: 2n, status: 'COMPLETED', statusMessage: 'done 🌊' });
    expect(outcome.sealTime).toBe(outcome.commitTime);
    expect(await scene.get(made.id)).toMatchObject({
      status: 'COMPLETED',
      statusMessage: 'done 🌊',
      sealTime: outcome.sealTime,
      nextStepNumber: 2n,
    });
    const changes = await history(scene, made);
    expect(changes.map(({ ordinal }) => Number(ordinal))).toEqual([0, 1]);
    expect(changes[1]).toMatchObject({
      old_status: 'RUNNING',
      new_status: 'COMPLETED',
      message: 'done 🌊',
      actor: 'tester',
    });
  });

  it('W5: a repeated equal seal gets the same answer and writes nothing; a different one is refused', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const first = await scene.seal(made, 'FAILED', 'why');
    const before = await scene.get(made.id);
    const again = await scene.seal(made, 'FAILED', 'why');
    expect(again).toMatchObject({ status: 'FAILED', statusMessage: 'why', sealTime: first.sealTime });
    for (const [status, message] of [
      ['FAILED', 'other'],
      ['COMPLETED', 'why'],
    ] as const)
      expect(await refusalOf(scene.seal(made, status, message))).toMatchObject({
        reason: 'TRAJECTORY_SEALED',
        metadata: { status: 'FAILED', next_step_number: '1' },
      });
    expect(await scene.get(made.id)).toEqual(before);
    expect(await history(scene, made)).toHaveLength(2);
  });

  it('L1: a sealed trajectory accepts no new steps, but its stored steps can be replayed', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await scene.seal(made);
    expect((await refusalOf(scene.append(made, [wordStep(1n, 'b')]))).reason).toBe('TRAJECTORY_SEALED');
    expect((await refusalOf(scene.append(made, [wordStep(9n, 'x')]))).reason).toBe('TRAJECTORY_SEALED');
    expect((await refusalOf(scene.append(made, [wordStep(0n, 'A')]))).reason).toBe('STEP_CONFLICT');
    expect(await scene.append(made, [wordStep(0n, 'a')])).toMatchObject({ duplicates: 1, status: 'COMPLETED' });
  });

  it('W5: steps and seal are one: a refused step does not seal, a refused seal does not append', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const seal = { status: 'COMPLETED', message: '' } as const;
    await refusalOf(scene.append(made, [wordStep(2n, 'c')], { seal }));
    expect((await scene.get(made.id)).status).toBe('RUNNING');
    expect(await history(scene, made)).toHaveLength(1);
  });

  it('an empty trajectory can be sealed, and of many concurrent seals one takes effect', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const results = await Promise.allSettled(
      (['COMPLETED', 'FAILED', 'CANCELLED'] as const).map((status) => scene.seal(made, status)),
    );
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    expect(await history(scene, made)).toHaveLength(2);
    expect((await scene.get(made.id)).nextStepNumber).toBe(0n);
  });
});
