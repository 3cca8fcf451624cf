import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { StatusOwner } from '../../src/store/contract/status_change.ts';
import { describeStore } from './on_store.ts';
import { RunScene, SILENT } from './run_scene.ts';
import { refusalOf } from './scene.ts';

describeStore('histories of statuses', (on) => {
  const scene = () => new RunScene(on.store);

  function list(here: RunScene, owner: StatusOwner, limit: number, after: bigint | undefined, ascending: boolean) {
    return here.store.listStatusChanges(here.namespace, owner, { limit, after }, ascending);
  }

  it('L5: are listed in either order of ordinal, in pages', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    for (let i = 0; i < 4; i += 1) await here.move(run, i % 2 === 0 ? 'pause' : 'resume', { message: `${i}` });
    const owner = { noun: 'RUN', id: run.id } as const;
    const ordinals = async (limit: number, after: bigint | undefined, ascending: boolean) =>
      (await list(here, owner, limit, after, ascending)).map(({ ordinal }) => Number(ordinal));
    expect(await ordinals(10, undefined, true)).toEqual([0, 1, 2, 3, 4]);
    expect(await ordinals(2, undefined, false)).toEqual([4, 3]);
    expect(await ordinals(2, 3n, false)).toEqual([2, 1]);
    expect(await ordinals(10, 0n, false)).toEqual([]);
    expect(await ordinals(2, 1n, true)).toEqual([2, 3]);
    expect(await ordinals(10, 4n, true)).toEqual([]);
  });

  it('L5: events of the same second, even of the same instant, keep their order', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    for (let i = 0; i < 30; i += 1) await here.move(run, i % 2 === 0 ? 'pause' : 'resume', { message: `${i}` });
    const moment = on.engine === 'sqlite' ? `'2026-01-01T00:00:00.000000Z'` : `timestamptz '2026-01-01 00:00:00Z'`;
    await on.sql.rows(`update status_changes set change_time = ${moment} where namespace = '${here.namespace}'`);
    const history = await here.history('RUN', run);
    expect(new Set(history.map(({ changeTime }) => changeTime)).size).toBe(1);
    expect(history.map(({ message }) => message)).toEqual(['', ...Array.from({ length: 30 }, (_, i) => `${i}`)]);
    const newest = await list(here, { noun: 'RUN', id: run.id }, 3, undefined, false);
    expect(newest.map(({ message }) => message)).toEqual(['29', '28', '27']);
  });

  it('L1, L5: a trajectory records its creation and its seal', async () => {
    const here = scene();
    const made = await here.createWith(['a']);
    await here.seal(made, 'FAILED', 'lost');
    const owner = await here.history('TRAJECTORY', made);
    expect(owner).toMatchObject([
      { ordinal: 0n, oldStatus: undefined, newStatus: 'RUNNING', changeTime: made.createTime },
      { ordinal: 1n, oldStatus: 'RUNNING', newStatus: 'FAILED', message: 'lost', actor: 'tester' },
    ]);
  });

  it('L5: histories of a run, its stages and its trajectories are separate', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a'], { status: 'RUNNING' });
    const one = await here.stage(run, { kind: 'EVAL', number: 1n });
    const two = await here.stage(run, { kind: 'EVAL', number: 2n });
    const details = { ...SILENT, message: 'm', metadataJson: '{}' };
    await here.store.moveStage(here.caller, two.id, 'start', details);
    await here.move(run, 'pause');
    expect(await here.history('STAGE', one)).toMatchObject([{ newStatus: 'PENDING' }]);
    expect(await here.history('STAGE', two)).toMatchObject([
      { newStatus: 'PENDING' },
      { newStatus: 'RUNNING', message: 'm' },
    ]);
    expect(await here.history('RUN', run)).toMatchObject([{ newStatus: 'RUNNING' }, { newStatus: 'PAUSED' }]);
    expect(await here.history('TRAJECTORY', { id: run.mainTrajectory?.id ?? '' })).toHaveLength(1);
  });

  it('N1: an unknown resource, or one of another namespace, is not found, on every page', async () => {
    const [here, stranger] = [scene(), scene()];
    const run = await here.makeRunWith(['a']);
    const stage = await here.stage(run);
    const owners = { RUN: run.id, STAGE: stage.id, TRAJECTORY: run.mainTrajectory?.id ?? '' } as const;
    for (const noun of ['RUN', 'STAGE', 'TRAJECTORY'] as const)
      for (const after of [undefined, 5n]) {
        const reason = `${noun}_NOT_FOUND`;
        expect((await refusalOf(list(stranger, { noun, id: owners[noun] }, 9, after, true))).reason).toBe(reason);
        expect((await refusalOf(list(here, { noun, id: randomUUID() }, 9, after, false))).reason).toBe(reason);
      }
    for (const noun of ['RUN', 'STAGE', 'TRAJECTORY'] as const)
      expect(await list(here, { noun, id: owners[noun] }, 9, 5n, true)).toEqual([]);
  });

  it('a deleted resource has no history', async () => {
    const here = scene();
    const made = await here.createWith(['a']);
    await here.branch(made, 0n);
    await here.delete(made, 'KEEP_SHARED');
    expect((await refusalOf(here.history('TRAJECTORY', made))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });
});
