import pg from 'pg';
import { expect, it } from 'vitest';
import { describeStore, describeStoreOn } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { dumpNamespace } from './sql.ts';

describeStore('the end of a run and its main trajectory', (on) => {
  const scene = () => new RunScene(on.store);

  it.each([
    ['complete', 'COMPLETED'],
    ['fail', 'FAILED'],
    ['cancel', 'CANCELLED'],
  ] as const)(
    '%s works from every open status and seals the main trajectory with the same status and message',
    async (verb, status) => {
      const here = scene();
      for (const from of ['PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED'] as const) {
        const run = await here.makeRunWith(['a', 'b'], { status: from === 'PAUSED' ? 'RUNNING' : from });
        if (from === 'PAUSED') await here.move(run, 'pause');
        const ended = await here.move(run, verb, { message: 'enough' });
        expect(ended).toMatchObject({ status, statusMessage: 'enough' });
        const main = await here.get(run.mainTrajectory!.id);
        expect(main).toMatchObject({ status, statusMessage: 'enough', nextStepNumber: 2n, sealTime: ended.endTime });
        expect(await here.history('TRAJECTORY', main)).toMatchObject([
          { newStatus: 'RUNNING' },
          { oldStatus: 'RUNNING', newStatus: status, message: 'enough', actor: 'tester', changeTime: ended.endTime },
        ]);
      }
    },
  );

  it('L2: with keep_trajectory_open the main trajectory stays open; a sealed one keeps its seal', async () => {
    const here = scene();
    const open = await here.makeRunWith(['a']);
    await here.move(open, 'complete', {}, { keepTrajectoryOpen: true });
    const main = await here.get(open.mainTrajectory!.id);
    expect(main.status).toBe('RUNNING');
    await here.appendWords(main, ['b']);
    const sealed = await here.makeRunWith(['a']);
    await here.seal(await here.get(sealed.mainTrajectory!.id), 'FAILED', 'fell');
    await here.move(sealed, 'complete', { message: 'won' });
    expect(await here.get(sealed.mainTrajectory!.id)).toMatchObject({ status: 'FAILED', statusMessage: 'fell' });
  });

  it('a repeated verb writes nothing, whatever happened to the trajectory', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a']);
    await here.move(run, 'complete', {}, { keepTrajectoryOpen: true });
    const before = await dumpNamespace(on.sql, here.namespace);
    await here.move(run, 'complete');
    expect(await dumpNamespace(on.sql, here.namespace)).toEqual(before);
  });

  it('a reopened run continues in a branch of its sealed main trajectory, at its last step', async () => {
    const here = scene();
    const labels = new Map([['k', 'v']]);
    const run = await here.makeRunWith(['a', 'b'], { name: 'r', labels });
    await here.move(run, 'complete');
    const reopened = await here.move(run, 'reopen');
    const old = run.mainTrajectory!.id;
    const main = await here.get(reopened.mainTrajectory!.id);
    expect(main.id).not.toBe(old);
    expect(main).toMatchObject({
      parent: { id: old, branchPoint: 1n },
      nextStepNumber: 2n,
      status: 'RUNNING',
      runId: run.id,
    });
    expect(main.name).toBe((await here.get(old)).name);
    await here.appendWords(main, ['c']);
    expect((await here.run(run.id)).mainTrajectory?.id).toBe(main.id);
    expect((await here.get(old)).status).toBe('COMPLETED');
    const again = await here.move(run, 'reopen');
    expect(again.mainTrajectory?.id).toBe(main.id);
  });

  it('a reopened run gets a new main trajectory if the sealed one has no steps, and keeps an open one', async () => {
    const here = scene();
    const empty = await here.makeRunWith([]);
    await here.move(empty, 'cancel');
    const reopened = await here.move(empty, 'reopen');
    const main = await here.get(reopened.mainTrajectory!.id);
    expect(main).toMatchObject({ parent: undefined, nextStepNumber: 0n, runId: empty.id });
    expect(main.id).not.toBe(empty.mainTrajectory!.id);
    const kept = await here.makeRunWith(['a']);
    await here.move(kept, 'complete', {}, { keepTrajectoryOpen: true });
    expect((await here.move(kept, 'reopen')).mainTrajectory?.id).toBe(kept.mainTrajectory!.id);
    const none = await here.makeRun();
    await here.move(none, 'complete');
    expect((await here.move(none, 'reopen')).mainTrajectory).toBeUndefined();
  });

  it('a stale run that the server fails is sealed too', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a'], { status: 'RUNNING', failWhenStale: true, heartbeatTimeoutMs: 1000 });
    await on.sql.rows(`update runs set stale_time = create_time where key = ${run.key}`);
    expect(await on.store.failStaleRuns(1000)).toBeGreaterThan(0);
    const { statusMessage } = await here.run(run.id);
    expect(await here.get(run.mainTrajectory!.id)).toMatchObject({ status: 'FAILED', statusMessage });
  });
});

describeStoreOn(['postgres'], 'the sweep of stale runs', (on) => {
  it('the sweep skips a run while another transaction locks its main trajectory', async () => {
    const here = new RunScene(on.store);
    const stale = { status: 'RUNNING', failWhenStale: true } as const;
    const [held, free] = [await here.makeRunWith(['a'], stale), await here.makeRunWith(['a'], stale)];
    await on.sql.rows(`update runs set stale_time = create_time where key in (${held.key}, ${free.key})`);
    const other = new pg.Client(on.database.adminUrl);
    await other.connect();
    await other.query('begin');
    await other.query(`select 1 from anabranch.trajectories where id = '${held.mainTrajectory!.id}' for update`);
    await on.store.failStaleRuns(1000);
    expect((await here.run(held.id)).status).toBe('RUNNING');
    expect((await here.run(free.id)).status).toBe('FAILED');
    await other.query('commit');
    await other.end();
    await on.store.failStaleRuns(1000);
    expect((await here.run(held.id)).status).toBe('FAILED');
    expect((await here.get(held.mainTrajectory!.id)).status).toBe('FAILED');
  });
});
