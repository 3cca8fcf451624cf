import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Contended, type Store } from '../../src/store/contract/store.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { openOn } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { SILENT } from './run_scene.ts';
import { committed, putState, refusalOf, Scene } from './scene.ts';
import { waitingForLocks } from './sql.ts';
import { expectVerified } from './verified.ts';

/** Only on Postgres can one transaction lock rows while others proceed; SQLite runs one write transaction at a time. */
describe('trajectories that another transaction locks, on postgres', () => {
  let database: TestDatabase;
  let store: Store;
  let other: pg.Client;

  beforeAll(async () => {
    database = await createMigratedDatabase('postgres');
    store = await openOn(database);
    other = new pg.Client(database.url);
    await other.connect();
    await other.query('set search_path to anabranch');
  });
  afterAll(async () => {
    await other?.end();
    await store?.close();
    await database?.drop();
  });

  async function holding<T>(statement: string, work: () => Promise<T>): Promise<T> {
    await other.query('begin');
    try {
      await other.query(statement);
      return await work();
    } finally {
      await other.query('rollback');
    }
  }

  const rowOf = (key: bigint, lock = 'update') => `select 1 from trajectories where key = ${key} for ${lock}`;

  it('W7: in mode "never", a locked trajectory whose end is cached is reported busy at once', async () => {
    const scene = new Scene(store);
    const made = await scene.create();
    await scene.append(made, [wordStep(0n, '0')]);
    await scene.append(made, [wordStep(1n, '1')]);
    await holding(rowOf(made.ref.key), async () => {
      expect(await store.append([scene.batch(made, [wordStep(2n, '2')])], 'never')).toEqual([{ kind: 'busy' }]);
    });
    await scene.append(made, [wordStep(2n, '2')]);
    expect(await scene.words(made)).toEqual(['0', '1', '2']);
  });

  it('W7: of a group whose ends are cached, a locked trajectory is busy, and the others commit', async () => {
    const scene = new Scene(store);
    const made = await Promise.all(Array.from({ length: 4 }, () => scene.createWith(['0'])));
    const batches = made.map((each) => scene.batch(each, [wordStep(1n, '1')]));
    const outcomes = await holding(rowOf(made[2]!.ref.key), () => scene.appendAll(batches));
    expect(outcomes.map(({ kind }) => kind)).toEqual(['committed', 'committed', 'busy', 'committed']);
    expect(await scene.words(made[2]!)).toEqual(['0']);
    expect((await scene.appendAll(batches)).map((each) => committed(each).duplicates)).toEqual([1, 1, 0, 1]);
  });

  it('W7: in mode "never", a locked trajectory is busy and nothing of it is written; others commit without waiting', async () => {
    const scene = new Scene(store);
    const made = await Promise.all(Array.from({ length: 8 }, () => scene.create()));
    const held = made[3] as (typeof made)[number];
    const state = newState('of the held one');
    const batches = made.flatMap((each) => [
      scene.batch(each, [makeStep(0n, each === held ? { states: [stateRef(state)] } : {})], {
        states: each === held ? [state] : [],
      }),
      scene.batch(each, [wordStep(1n, 'b')]),
    ]);
    const outcomes = await holding(rowOf(held.ref.key), async () => {
      const outcomes = await store.append(batches, 'never');
      expect((await scene.get(held.id)).nextStepNumber).toBe(0n);
      expect(await store.findStates(scene.namespace, [state.digest], false)).toEqual([]);
      return outcomes;
    });
    for (const [i, outcome] of outcomes.entries())
      expect(outcome.kind).toBe(made[Math.floor(i / 2)] === held ? 'busy' : 'committed');
    for (const each of made) if (each !== held) expect((await scene.get(each.id)).nextStepNumber).toBe(2n);
    const again = await store.append(batches, 'never');
    expect(committed(again[6])).toMatchObject({ duplicates: 0, nextStepNumber: 1n });
    expect(committed(again[0])).toMatchObject({ duplicates: 1 });
  });

  it('W7: a missing trajectory is NOT_FOUND, not busy, also beside a locked one', async () => {
    const scene = new Scene(store);
    const [held, deleted, free] = [await scene.create(), await scene.create(), await scene.create()];
    await scene.delete(deleted);
    const batches = [held, deleted, free].map((each) => scene.batch(each, [wordStep(0n, 'a')]));
    const outcomes = await holding(rowOf(held.ref.key), () => store.append(batches, 'never'));
    expect(outcomes).toMatchObject([
      { kind: 'busy' },
      { kind: 'refused', error: { reason: 'TRAJECTORY_NOT_FOUND' } },
      { kind: 'committed' },
    ]);
  });

  it('W7: in mode "bounded", an append waits for the lock and continues when it is released', async () => {
    const scene = new Scene(store);
    const made = await scene.create();
    let appending: ReturnType<typeof scene.append> | undefined;
    await holding(rowOf(made.ref.key), async () => {
      appending = scene.append(made, [wordStep(0n, 'a')]);
      await waitingForLocks(async (text) => (await other.query(text)).rows, 1);
      expect((await scene.get(made.id)).nextStepNumber).toBe(0n);
    });
    expect(await appending).toMatchObject({ nextStepNumber: 1n });
  });

  it('W7, A1: in mode "bounded", an append fails after a few seconds with DATABASE_UNAVAILABLE and writes nothing', async () => {
    const scene = new Scene(store);
    const [held, free] = [await scene.create(), await scene.create()];
    await holding(rowOf(held.ref.key), async () => {
      const begun = performance.now();
      const batches = [held, free].map((each) => scene.batch(each, [wordStep(0n, 'a')]));
      expect((await refusalOf(store.append(batches, 'bounded'))).reason).toBe('DATABASE_UNAVAILABLE');
      expect(performance.now() - begun).toBeLessThan(8_000);
    });
    expect((await scene.get(held.id)).nextStepNumber).toBe(0n);
    expect((await scene.get(free.id)).nextStepNumber).toBe(0n);
    await scene.append(held, [wordStep(0n, 'a')]);
  });

  it('W7: a lock that timed out is named, and in mode "never" it is waited for only briefly', async () => {
    const scene = new Scene(store);
    const made = await scene.create();
    const held = newState('held');
    await putState(store, scene.namespace, held.data);
    const batch = scene.batch(made, [makeStep(0n, { states: [stateRef(held)] })]);
    const stateRow = `select 1 from states where namespace = '${scene.namespace}' and digest = '\\x${held.digest}' for update`;
    await holding(stateRow, async () => {
      for (const wait of ['never', 'bounded'] as const) {
        const refusal = await refusalOf(store.append([batch], wait));
        expect(refusal).toBeInstanceOf(Contended);
        expect(refusal).toMatchObject({
          reason: 'DATABASE_UNAVAILABLE',
          message: expect.stringMatching('locked the row of a state'),
        });
      }
    });
    await holding(rowOf(made.ref.key), async () => {
      const refusal = await refusalOf(store.append([batch], 'bounded'));
      expect(refusal).toMatchObject({ message: expect.stringMatching('locked the row of a trajectory') });
    });
    expect(await store.append([batch], 'never')).toMatchObject([{ kind: 'committed' }]);
  });

  it('W1: an open waits for the row lock, and is granted when it is released', async () => {
    const scene = new Scene(store);
    const made = await scene.create();
    let opening: Promise<bigint> | undefined;
    let ended = false;
    await holding(rowOf(made.ref.key), async () => {
      opening = scene.open(made).finally(() => {
        ended = true;
      });
      for (let i = 0; i < 20; i += 1) await scene.isThere(made.id);
      expect(ended).toBe(false);
    });
    expect(await opening).toBe(1n);
    expect((await scene.get(made.id)).writerEpoch).toBe(1n);
  });

  it('W1, A1: opens that wait for rows hold no connection, so other calls proceed; they fail after a few seconds', async () => {
    const scene = new Scene(store);
    const made = await Promise.all(Array.from({ length: 40 }, () => scene.create()));
    const keys = made.map(({ ref }) => ref.key).join(',');
    await holding(`select 1 from trajectories where key in (${keys}) for update`, async () => {
      const opens = made.map((each) => refusalOf(scene.open(each)));
      for (let i = 0; i < 20; i += 1) {
        await scene.open(await scene.createWith(['a']));
        const waiting = await other.query(
          `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
        );
        expect(waiting.rows).toEqual([]);
        await other.query('select pg_stat_clear_snapshot()');
      }
      for (const { reason } of await Promise.all(opens)) expect(reason).toBe('DATABASE_UNAVAILABLE');
    });
    for (const each of made.slice(0, 3)) expect(await scene.open(each)).toBe(1n);
  });

  it('B3: an open of a trajectory that is being deleted does not wait: it is NOT_FOUND', async () => {
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    const caller = new AbortController();
    const stop = store.onChange(() => caller.abort(new Error('left')));
    await expect(
      store.within({ signal: caller.signal }).deleteTrajectory(scene.namespace, made.id, 'REFUSE'),
    ).rejects.toThrow('left');
    stop();
    await holding(rowOf(made.ref.key), async () => {
      expect((await refusalOf(scene.open(made))).reason).toBe('TRAJECTORY_NOT_FOUND');
    });
    while (await store.purgeDeleted(100));
  });

  it('B1, O2: a branch does not wait for a writer of its parent, and a writer does not wait for a branch', async () => {
    const scene = new Scene(store);
    const root = await scene.createWith(['a', 'b']);
    // The locks that an append takes.
    const child = await holding(rowOf(root.ref.key, 'no key update'), () => scene.branch(root, 0n));
    expect(await scene.words(child)).toEqual(['a']);
    // The locks that a branch takes.
    const outcome = await holding(rowOf(root.ref.key, 'key share'), () =>
      store.append([scene.batch(root, [wordStep(2n, 'c')])], 'never'),
    );
    expect(outcome).toMatchObject([{ kind: 'committed' }]);
  });

  it('D2: readers never wait, and see only committed data', async () => {
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    await holding(
      `${rowOf(made.ref.key)}; update segments set rewards = '[1]', checksum = 0 where trajectory = ${made.ref.key}`,
      async () => {
        expect(await scene.words(made)).toEqual(['a']);
        expect((await scene.steps(made))[0]?.step.reward).toBeUndefined();
        expect(await scene.store.listTrajectories(scene.namespace, {}, { limit: 1, after: undefined })).toHaveLength(1);
      },
    );
  });

  it('V1: a merge that a crash of Postgres has undone is made again, though this process remembers it', async () => {
    const scene = new Scene(store);
    const made = await scene.create();
    const { key } = made.ref;
    const env = newState('env');
    for (let first = 0; first < 256; first += 64) {
      const steps = Array.from({ length: 64 }, (_, i) =>
        wordStep(BigInt(first + i), 'words', i === 0 ? { states: [stateRef(env)] } : {}),
      );
      await scene.append(made, steps, { states: [env] });
    }
    const [before] = (await other.query(`select json_agg(s) as rows from segments as s where trajectory = ${key}`))
      .rows;
    // While the row is held, the merge cannot move `merged_to`.
    await holding(rowOf(key, 'no key update'), () => store.mergeSteps([{ ref: made.ref, rest: false }]));
    const unmerged = async () =>
      (await other.query(`select first_step_number from segments where trajectory = ${key} and body_bytes is null`))
        .rows;
    expect(await unmerged()).toEqual([]);
    await other.query(`delete from segments where trajectory = ${key};
      delete from segment_names where trajectory = ${key}`);
    await other.query('insert into segments select * from json_populate_recordset(null::segments, $1)', [
      JSON.stringify(before!.rows),
    ]);
    await store.mergeSteps([{ ref: made.ref, rest: false }]);
    expect(await unmerged()).toEqual([]);
    await expectVerified(store);
  });

  it('D3: a group that fails in the database is not stored at all, and each batch can be retried alone', async () => {
    const scene = new Scene(store);
    const [bad, good] = [await scene.create(), await scene.create()];
    await other.query(`
      create function refuse() returns trigger language plpgsql as $$ begin
        if new.trajectory = ${bad.ref.key} then raise exception 'this row cannot be written' using errcode = 'P0001'; end if;
        return new; end $$;
      create trigger refuse before insert on segments for each row execute function refuse()`);
    try {
      const batches = [good, bad].map((each) => scene.batch(each, [wordStep(0n, 'a')]));
      await expect(store.append(batches, 'never')).rejects.toThrow();
      expect((await scene.get(good.id)).nextStepNumber).toBe(0n);
      expect(await scene.append(good, [wordStep(0n, 'a')])).toMatchObject({ duplicates: 0, nextStepNumber: 1n });
      await expect(store.append([scene.batch(bad, [wordStep(0n, 'a')])], 'never')).rejects.toThrow();
    } finally {
      await other.query('drop trigger refuse on segments; drop function refuse');
    }
    expect(await scene.append(bad, [wordStep(0n, 'a')])).toMatchObject({ duplicates: 0 });
  });

  it('L2: rollouts that are cancelled with their stage do not wait for an append to another rollout’s trajectory', async () => {
    const scene = new RolloutScene(store);
    const { stage } = await scene.place();
    await scene.queue(stage, 4);
    const [first, second] = await scene.claims({ count: 3 });
    await store.moveStage(scene.caller, stage.id, 'cancel', SILENT, true);
    const next = () => store.cancelNextRollouts(scene.namespace, { stageId: stage.id });
    await holding(rowOf(second!.trajectory.ref.key), async () => {
      expect(await next()).toEqual({ cancelled: 3n, more: true });
      expect((await scene.rollout(first!.rollout.id)).status).toBe('CANCELLED');
      expect((await scene.rollout(second!.rollout.id)).status).toBe('INITIALIZING');
    });
    expect(await next()).toEqual({ cancelled: 4n, more: true });
    expect(await next()).toEqual({ cancelled: 4n, more: false });
  });

  it('A1: each cut connection causes one error, and the store recovers by itself', async () => {
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    const admin = new pg.Client(database.adminUrl);
    await admin.connect();
    const own = (await other.query('select pg_backend_pid() as pid')).rows[0]?.pid;
    for (let round = 0; round < 5; round += 1) {
      const calls = Array.from({ length: 6 }, (_, i) =>
        scene.append(made, [wordStep(1n + BigInt(i), `${i}`)]).catch((error) => error),
      );
      await admin.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and pid not in (pg_backend_pid(), ${own})`,
      );
      for (const result of await Promise.all(calls))
        if (result instanceof Error)
          expect(['DATABASE_UNAVAILABLE', 'STEP_GAP']).toContain((result as { reason?: string }).reason);
    }
    await admin.end();
    for (let i = 0n; i < 6n; i += 1n) await settled(() => scene.append(made, [wordStep(1n + i, `${i}`)]));
    expect(await scene.words(made)).toEqual(['a', '0', '1', '2', '3', '4', '5']);
    await store.ping();
  });

  /** A call whose outcome is unknown is repeated, as a client would do (I1). */
  async function settled(call: () => Promise<unknown>): Promise<void> {
    for (let tries = 0; ; tries += 1) {
      try {
        await call();
        return;
      } catch (error) {
        if (tries === 10 || (error as { reason?: string }).reason !== 'DATABASE_UNAVAILABLE') throw error;
      }
    }
  }
});
