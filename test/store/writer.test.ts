import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { OpenRequest } from '../../src/domain/append.ts';
import { describeStore } from './on_store.ts';
import { refusalOf, type Scene } from './scene.ts';

function opening(trajectory: { readonly id: string }, fields: Partial<OpenRequest> = {}): OpenRequest {
  return {
    trajectoryId: trajectory.id,
    uid: undefined,
    writerId: 'w',
    takeOverEpoch: undefined,
    expectedNextStepNumber: undefined,
    ...fields,
  };
}

describeStore('opening a trajectory for append', (on) => {
  const open = (scene: Scene, trajectory: { readonly id: string }, fields: Partial<OpenRequest> = {}) =>
    scene.store.openForAppend(scene.caller, opening(trajectory, fields));

  it('W1: grants epochs 1, 2, 3, … and stores epoch and writer durably', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const first = await open(scene, made, { writerId: 'Wr🌊ter' });
    expect(first).toMatchObject({ epoch: 1n, trajectory: { id: made.id, uid: made.uid, nextStepNumber: 1n } });
    expect(first.trajectory.ref).toEqual(made.ref);
    expect(await scene.get(made.id)).toMatchObject({ writerId: 'Wr🌊ter', writerEpoch: 1n });
    expect((await open(scene, made, { writerId: 'Wr🌊ter' })).epoch).toBe(2n);
    expect((await open(scene, made, { writerId: 'other', takeOverEpoch: 2n })).epoch).toBe(3n);
    expect(await scene.get(made.id)).toMatchObject({ writerId: 'other', writerEpoch: 3n });
  });

  it('N3: a grant tells whether it fences a writer of another principal', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const granted = async (actor: string, writerId: string, takeOverEpoch?: bigint) =>
      (await scene.store.openForAppend({ ...scene.caller, actor }, opening(made, { writerId, takeOverEpoch })))
        .tookOver;
    const told = [
      await granted('ann', 'w'),
      await granted('ann', 'x', 1n),
      await granted('bob', 'x'),
      await granted('bob', 'x'),
      await granted('ann', 'w', 4n),
    ];
    expect(told).toEqual([false, false, true, false, true]);
  });

  it('W1: a refused open changes nothing', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await open(scene, made);
    const before = await scene.get(made.id);
    expect(await refusalOf(open(scene, made, { writerId: 'W' }))).toMatchObject({
      reason: 'WRITER_FENCED',
      metadata: { writer_id: 'w', writer_epoch: '1' },
    });
    expect((await refusalOf(open(scene, made, { writerId: 'x', takeOverEpoch: 0n }))).reason).toBe('WRITER_FENCED');
    expect((await refusalOf(open(scene, made, { expectedNextStepNumber: 2n }))).reason).toBe('UNEXPECTED_POSITION');
    expect((await refusalOf(open(scene, made, { uid: randomUUID() }))).reason).toBe('TRAJECTORY_NOT_FOUND');
    expect((await refusalOf(open(scene, { id: randomUUID() }))).reason).toBe('TRAJECTORY_NOT_FOUND');
    expect(await scene.get(made.id)).toEqual(before);
  });

  it('W1: of many concurrent opens, each with the epoch it saw, one is granted', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await open(scene, made, { writerId: 'first' });
    const results = await Promise.allSettled(
      Array.from({ length: 8 }, (_, i) => open(scene, made, { writerId: `w${i}`, takeOverEpoch: 1n })),
    );
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    expect((await scene.get(made.id)).writerEpoch).toBe(2n);
  });

  it('W1: of many concurrent opens of a new trajectory, one is granted', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const results = await Promise.allSettled(
      Array.from({ length: 8 }, (_, i) => open(scene, made, { writerId: `w${i}` })),
    );
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
  });

  it('W1: a sealed trajectory may be opened; the answer says that it is sealed', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await scene.seal(made, 'CANCELLED');
    expect((await open(scene, made)).trajectory).toMatchObject({ status: 'CANCELLED', nextStepNumber: 1n });
  });
});
