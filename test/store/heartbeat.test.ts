import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { expect, it } from 'vitest';
import { describeStore, openOn } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { refusalOf } from './scene.ts';

const SECOND = 1_000_000_000n;

describeStore('heartbeats of runs', (on) => {
  const scene = () => new RunScene(on.store);

  /** Moves the last heartbeat of the run this many seconds into the past. */
  async function age({ id }: { readonly id: string }, seconds: number): Promise<void> {
    const earlier = (column: string) => on.sql.earlier(column, seconds);
    await on.sql.rows(
      `update runs set heartbeat_time = ${earlier('heartbeat_time')}, stale_time = ${earlier('stale_time')} where id = '${id}'`,
    );
  }

  /** Sweeps until nothing is left, and returns which runs of a scene are FAILED then. */
  async function swept(here: RunScene): Promise<string[]> {
    while ((await on.store.failStaleRuns(100)) > 0);
    return here.runNames({ statuses: ['FAILED'] });
  }

  it('a heartbeat is stored, returns the status of the run, and counts as a change of its row', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    expect(run.heartbeatTime).toBeUndefined();
    await here.store.updateRun(here.namespace, run.id, { statusMessage: 'm' });
    const beat = await here.store.heartbeatRun(here.namespace, run.id);
    expect(beat).toMatchObject({ status: 'RUNNING', statusMessage: 'm' });
    const now = await here.run(run.id);
    expect(now).toMatchObject({ heartbeatTime: beat.heartbeatTime, stale: false, revision: 3n });
    expect(Math.abs(Number(beat.heartbeatTime / 1_000_000n) - Date.now())).toBeLessThan(60_000);
    const again = await here.store.heartbeatRun(here.namespace, run.id);
    expect(again.heartbeatTime > beat.heartbeatTime).toBe(true);
    const nobody = here.store.heartbeatRun(here.namespace, randomUUID());
    expect((await refusalOf(nobody)).reason).toBe('RUN_NOT_FOUND');
  });

  it('a heartbeat returns a pause and the end of the run', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    await here.move(run, 'pause', { message: 'wait' });
    expect(await here.store.heartbeatRun(here.namespace, run.id)).toMatchObject({
      status: 'PAUSED',
      statusMessage: 'wait',
    });
    await here.move(run, 'cancel');
    expect(await here.store.heartbeatRun(here.namespace, run.id)).toMatchObject({ status: 'CANCELLED' });
  });

  it('an INITIALIZING or RUNNING run is stale once its last heartbeat is older than its timeout, by the clock of the database', async () => {
    const here = scene();
    const make = async (name: string, status: 'INITIALIZING' | 'RUNNING' | 'PENDING' = 'RUNNING') => {
      const run = await here.makeRun({ name, status, heartbeatTimeoutMs: 10_000 });
      await here.store.heartbeatRun(here.namespace, run.id);
      return run;
    };
    await here.makeRun({ name: 'never', status: 'RUNNING' });
    const fresh = await make('fresh');
    const late = await make('late', 'INITIALIZING');
    const paused = await make('paused');
    const pending = await make('pending', 'PENDING');
    const done = await make('done');
    for (const run of [late, paused, pending, done]) await age(run, 11);
    await age(fresh, 5);
    expect(await here.runNames({ staleOnly: true })).toEqual(['done', 'paused', 'late']);
    await here.move(paused, 'pause');
    await here.move(done, 'complete');
    expect(await here.runNames({ staleOnly: true })).toEqual(['late']);
    expect((await here.runs()).filter(({ stale }) => stale).map(({ name }) => name)).toEqual(['late']);
    expect(await here.run(late.id)).toMatchObject({ stale: true });
    await here.store.heartbeatRun(here.namespace, late.id);
    expect(await here.runNames({ staleOnly: true })).toEqual([]);
  });

  it('the sweep fails a stale run that has fail_when_stale, with a reason; others are only shown as stale', async () => {
    const here = scene();
    const fields = { status: 'RUNNING', heartbeatTimeoutMs: 10_000 } as const;
    const doomed = await here.makeRun({ ...fields, name: 'doomed', failWhenStale: true });
    expect(doomed.heartbeatTime).toBe(doomed.createTime);
    const spared = await here.makeRun({ ...fields, name: 'spared' });
    await here.store.heartbeatRun(here.namespace, spared.id);
    const alive = await here.makeRun({ ...fields, name: 'alive', failWhenStale: true, heartbeatTimeoutMs: 3_600_000 });
    const paused = await here.makeRun({ ...fields, name: 'paused', failWhenStale: true });
    await here.move(paused, 'pause');
    for (const run of [doomed, spared, paused]) await age(run, 62);
    await age(alive, 3000);
    expect(await swept(here)).toEqual(['doomed']);
    const failed = await here.run(doomed.id);
    expect(failed).toMatchObject({ status: 'FAILED', stale: false, revision: 2n });
    expect(failed.statusMessage).toMatch(/^no heartbeat for 6[2-9] s$/);
    expect(await here.history('RUN', doomed)).toMatchObject([
      { actor: 'tester' },
      {
        oldStatus: 'RUNNING',
        newStatus: 'FAILED',
        actor: 'anabranch',
        message: failed.statusMessage,
        changeTime: failed.endTime,
      },
    ]);
    expect(await here.run(spared.id)).toMatchObject({ status: 'RUNNING', stale: true });
    expect(await here.run(alive.id)).toMatchObject({ status: 'RUNNING', stale: false });
    expect(await here.store.heartbeatRun(here.namespace, doomed.id)).toMatchObject({ status: 'FAILED' });
  });

  it('start, resume and reopen count as heartbeats of a run with fail_when_stale, so that it does not fail at once', async () => {
    const here = scene();
    const run = await here.makeRun({ name: 'one', failWhenStale: true, heartbeatTimeoutMs: 10_000 });
    for (const [before, verb] of [
      [undefined, 'start'],
      ['pause', 'resume'],
      ['complete', 'reopen'],
    ] as const) {
      if (before !== undefined) await here.move(run, before);
      await age(run, 3600);
      const moved = await here.move(run, verb);
      expect(moved.heartbeatTime).toBe(moved.updateTime);
      expect(moved.stale).toBe(false);
      expect(await swept(here)).toEqual([]);
    }
    await age(run, 11);
    expect(await swept(here)).toEqual(['one']);
    const free = await here.makeRun();
    expect((await here.move(free, 'start')).heartbeatTime).toBeUndefined();
  });

  it('a new timeout counts from the last heartbeat, or from when fail_when_stale was set if there was none', async () => {
    const here = scene();
    const run = await here.makeRun({ name: 'one', status: 'RUNNING' });
    const update = (changes: Parameters<typeof here.store.updateRun>[2]) =>
      here.store.updateRun(here.namespace, run.id, changes);
    const asked = await update({ failWhenStale: true });
    expect(asked.heartbeatTime).toBe(asked.updateTime);
    await age(run, 30);
    const longer = await update({ heartbeatTimeoutMs: 60_000 });
    expect(longer).toMatchObject({ stale: false, heartbeatTime: (asked.heartbeatTime ?? 0n) - 30n * SECOND });
    expect(await update({ heartbeatTimeoutMs: 20_000 })).toMatchObject({ stale: true });
    expect(await update({ failWhenStale: false })).toMatchObject({ stale: true, failWhenStale: false });
    expect(await swept(here)).toEqual([]);
    await update({ heartbeatTimeoutMs: undefined });
    expect(await here.run(run.id)).toMatchObject({ heartbeatTimeoutMs: 300_000, stale: false });
    await update({ failWhenStale: true, heartbeatTimeoutMs: 1000 });
    expect(await swept(here)).toEqual(['one']);
  });

  it('the sweep takes a limited number of runs, the longest stale first, of all namespaces', async () => {
    const scenes = [scene(), scene()];
    for (const [i, here] of scenes.entries())
      for (let n = 0; n < 3; n += 1) {
        const run = await here.makeRun({ status: 'RUNNING', failWhenStale: true, heartbeatTimeoutMs: 1000 });
        await age(run, 1000 - 100 * n - i);
      }
    expect(await on.store.failStaleRuns(3)).toBe(3);
    const failed = async () => Promise.all(scenes.map((here) => here.runNames({ statuses: ['FAILED'] })));
    expect(await failed()).toEqual([['run-2', 'run-1'], ['run-1']]);
    expect(await on.store.failStaleRuns(100)).toBe(3);
    expect(await on.store.failStaleRuns(100)).toBe(0);
  });

  it('many concurrent sweeps, of two instances on Postgres, fail each run once', async () => {
    const here = scene();
    const runs = await Promise.all(
      Array.from({ length: 20 }, () =>
        here.makeRun({ status: 'RUNNING', failWhenStale: true, heartbeatTimeoutMs: 1000 }),
      ),
    );
    for (const run of runs) await age(run, 60);
    const other = on.engine === 'postgres' ? await openOn(on.database) : undefined;
    const stores = [on.store, other ?? on.store];
    const counts = await Promise.all(Array.from({ length: 8 }, (_, i) => stores[i % 2]?.failStaleRuns(7) ?? 0));
    await other?.close();
    expect(counts.reduce((sum, count) => sum + count, 0) + (await on.store.failStaleRuns(100))).toBe(20);
    for (const run of runs) expect(await here.history('RUN', run)).toHaveLength(2);
  });

  // SQLite runs one write transaction at a time.
  if (on.engine === 'postgres')
    it('the sweep does not wait for a locked run on Postgres, and takes it the next time', async () => {
      const here = scene();
      const fields = { status: 'RUNNING', failWhenStale: true, heartbeatTimeoutMs: 1000 } as const;
      const [held, free] = [
        await here.makeRun({ ...fields, name: 'held' }),
        await here.makeRun({ ...fields, name: 'free' }),
      ];
      for (const run of [held, free]) await age(run, 60);
      const holder = new pg.Client(on.database.url);
      await holder.connect();
      await holder.query('begin');
      await holder.query('select 1 from anabranch.runs where id = $1 for no key update', [held.id]);
      expect(await swept(here)).toEqual(['free']);
      await holder.query('rollback');
      await holder.end();
      expect(await swept(here)).toEqual(['free', 'held']);
    });
});
