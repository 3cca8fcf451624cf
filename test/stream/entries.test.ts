import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { AnabranchError } from '../../src/domain/errors.ts';
import type { TrajectoryRef } from '../../src/domain/trajectory.ts';
import type { AppendStore } from '../../src/store/contract/append.ts';
import { Contended, DatabaseSilent } from '../../src/store/contract/store.ts';
import { appWithin } from '../../src/stream/app.ts';
import { Committer } from '../../src/stream/append/committer.ts';
import { commitEntries, type EntryOutcome, type NewEntry } from '../../src/stream/append/entries.ts';
import { all, describeApp, frame, step } from '../service/on_app.ts';
import { logger } from '../store/on_store.ts';
import { outsideSql } from '../store/sql.ts';
import { newSteps } from '../support/given_steps.ts';
import { wrappedStore } from '../support/wrapped_store.ts';

/** Longer than any test: entries wait until their trajectories are free. */
const FOREVER = 60_000;

describeApp('the entries of a call', (on) => {
  /** The app, and the calls of its store's `append`. */
  const recorded = (append: AppendStore['append'] = (batches, wait) => on.store.append(batches, wait)) => {
    const groups: number[] = [];
    const store = wrappedStore(on.store, {
      append: (batches, wait) => {
        groups.push(batches.length);
        return append(batches, wait);
      },
    });
    return { app: on.app({ commitsAtOnce: 1 }, store), groups };
  };

  it('W14, W7: of many trajectories are one transaction; each has its own result', async () => {
    const { app, groups } = recorded();
    const scene = on.scene(app);
    const made = await Promise.all(Array.from({ length: 256 }, () => scene.create()));
    const entries = made.map(({ id }) => entry(id, 0n));
    const missing = randomUUID();
    const outcomes = await commitEntries(app, scene.caller, [...entries, entry(missing, 0n), entry(made[3]!.id, 7n)]);
    expect(groups).toEqual([258 - 1]);
    expect(outcomes.slice(0, 256).every(({ kind }) => kind === 'committed')).toBe(true);
    expect(outcomes.slice(256).map(reasonOf)).toEqual(['TRAJECTORY_NOT_FOUND', 'STEP_GAP']);
    expect((await commitEntries(app, scene.caller, entries)).map(duplicatesOf)).toEqual(made.map(() => 1));
    expect(await commitEntries(app, scene.caller, [])).toEqual([]);
    await app.close();
  });

  it('W14, W2: of one trajectory are applied in order, and one that is refused affects no other', async () => {
    const scene = on.scene();
    const { id } = await scene.create();
    const seal = { status: 'FAILED', message: 'gave up' } as const;
    const outcomes = await commitEntries(scene.app, scene.caller, [
      entry(id, 0n, { writer: { writerId: 'one', takeOverEpoch: undefined } }),
      entry(id, 1n),
      entry(id, 1n, { writerEpoch: 1n }),
      entry(id, 3n, { writerEpoch: 1n }),
      entry(id, 2n, { writerEpoch: 1n, seal }),
      entry(id, 2n, { writerEpoch: 1n }),
      entry(id, 3n, { writerEpoch: 1n }),
    ]);
    expect(outcomes.map(reasonOf)).toEqual([
      'committed',
      'WRITER_FENCED',
      'committed',
      'STEP_GAP',
      'committed',
      'committed',
      'TRAJECTORY_SEALED',
    ]);
    expect(outcomes.map(duplicatesOf)).toEqual([0, undefined, 0, undefined, 0, 1, undefined]);
    expect(await scene.now({ id })).toMatchObject({ status: 'FAILED', statusMessage: 'gave up', nextStepNumber: 3n });
  });

  it('W14: one whose states others have locked for too long fails; it delays no other', async () => {
    const locked = new Set<string>();
    const { app } = recorded(async (batches, wait) => {
      if (batches.some(({ trajectoryId }) => locked.has(trajectoryId)))
        throw new Contended('DATABASE_UNAVAILABLE', 'held');
      return on.store.append(batches, wait);
    });
    const scene = on.scene(app);
    const [held, free] = [await scene.create(), await scene.create()];
    locked.add(held.id);
    const outcomes = await commitEntries(app, scene.caller, [entry(held.id, 0n), entry(free.id, 0n)], 1);
    expect(outcomes.map(reasonOf)).toEqual(['DATABASE_UNAVAILABLE', 'committed']);
    locked.clear();
    expect((await commitEntries(app, scene.caller, [entry(held.id, 0n)], 1)).map(duplicatesOf)).toEqual([0]);
    await app.close();
  });

  it('W14: one that waits for a lock when its caller leaves is dropped', async () => {
    const begun = Promise.withResolvers<void>();
    const { app, groups } = recorded(async (batches) => {
      begun.resolve();
      return batches.map(() => ({ kind: 'busy' }));
    });
    const scene = on.scene(app);
    const { id } = await scene.create();
    const caller = new AbortController();
    const within = appWithin(app, { signal: caller.signal });
    const outcomes = commitEntries(within, scene.caller, [entry(id, 0n)], FOREVER).catch((error: unknown) => error);
    await begun.promise;
    caller.abort(new Error('left'));
    expect(await outcomes).toEqual(new Error('left'));
    await app.committer.idle();
    expect(groups.length).toBeLessThanOrEqual(2);
    expect(await scene.words({ id })).toEqual([]);
    await app.close();
  });

  it('W14, W7: what others send to a locked trajectory follows the entry that has failed', async () => {
    const begun = Promise.withResolvers<void>();
    const { app } = recorded(async (batches, wait) => {
      if (!batches.some(({ independent }) => independent)) return on.store.append(batches, wait);
      begun.resolve();
      return batches.map(() => ({ kind: 'busy' }));
    });
    const scene = on.scene(app);
    const { id } = await scene.create();
    const session = await scene.open({ id });
    const outcomes = commitEntries(app, scene.caller, [entry(id, 0n, { writerEpoch: 1n })], 50);
    await begun.promise;
    session.push(frame([step(0n, 'stream')]));
    session.end();
    expect((await outcomes).map(reasonOf)).toEqual(['DATABASE_UNAVAILABLE']);
    expect(await all(session.events())).toMatchObject([{ kind: 'ack', nextStepNumber: 1n }]);
    await app.close();
  });

  it('W14, A1: all that wait for locks fail at once when the database falls silent', async () => {
    let calls = 0;
    const silent = new DatabaseSilent('DATABASE_UNAVAILABLE', 'silent');
    const { app } = recorded(async (batches) => {
      calls += 1;
      if (calls > 1) throw silent;
      return batches.map(() => ({ kind: 'busy' }));
    });
    const scene = on.scene(app);
    const [one, two] = [await scene.create(), await scene.create()];
    const outcomes = await commitEntries(app, scene.caller, [entry(one.id, 0n), entry(two.id, 0n)], FOREVER);
    expect(outcomes).toEqual([
      { kind: 'failed', error: silent },
      { kind: 'failed', error: silent },
    ]);
    await app.close();
  });

  it('W14, A1: one that waits for another group when the database falls silent is not stored later', async () => {
    const app = on.app();
    const scene = on.scene(app);
    const [one, two] = [await scene.create(), await scene.create()];
    const silent = new DatabaseSilent('DATABASE_UNAVAILABLE', 'silent');
    let calls = 0;
    let idle: Promise<void> | undefined;
    const append: AppendStore['append'] = async (batches, wait) => {
      calls += 1;
      if (calls > 1) return on.store.append(batches, wait);
      idle = committer.idle();
      throw silent;
    };
    const committer = new Committer({ append }, logger, { commitsAtOnce: 1, groupSteps: 1 });
    const outcomes = await commitEntries({ ...app, committer }, scene.caller, [entry(one.id, 0n), entry(two.id, 0n)]);
    expect(outcomes.map(reasonOf)).toEqual(['DATABASE_UNAVAILABLE', 'DATABASE_UNAVAILABLE']);
    await idle;
    expect([await scene.words(one), await scene.words(two), calls]).toEqual([[], [], 1]);
    expect((await commitEntries({ ...app, committer }, scene.caller, [entry(two.id, 0n)])).map(reasonOf)).toEqual([
      'committed',
    ]);
    await app.close();
  });

  /** The app, the ids that it looks up, and row keys that its store knows instead of its own. */
  const lookingUp = (known?: (namespace: string, id: string) => TrajectoryRef | undefined) => {
    const lookedUp: string[][] = [];
    const store = wrappedStore(on.store, {
      findTrajectoryRefs: (namespace, ids) => {
        lookedUp.push([...ids]);
        return on.store.findTrajectoryRefs(namespace, ids);
      },
      ...(known && { knownTrajectoryRef: known }),
    });
    return { app: on.app({ commitsAtOnce: 1 }, store), lookedUp };
  };

  it('W14: of a trajectory that was written lately are not looked up, in its namespace only', async () => {
    const { app, lookedUp } = lookingUp();
    const [scene, other] = [on.scene(app), on.scene(app)];
    const { id } = await scene.create();
    for (const number of [0n, 1n, 2n]) await commitEntries(app, scene.caller, [entry(id, number)]);
    expect(lookedUp).toEqual([[id]]);
    expect((await commitEntries(app, other.caller, [entry(id, 3n)])).map(reasonOf)).toEqual(['TRAJECTORY_NOT_FOUND']);
    expect(lookedUp).toEqual([[id], [id]]);
    expect(await scene.words({ id })).toEqual(['0', '1', '2']);
    await app.close();
  });

  it('W14: of a trajectory that was deleted after they knew it are looked up once more, and fail', async () => {
    const here = on.scene();
    const deleted = await here.create();
    await on.store.deleteTrajectory(here.caller.namespace, deleted.id, 'REFUSE');
    const { app, lookedUp } = lookingUp(() => deleted.ref);
    const outcomes = await commitEntries(app, here.caller, [entry(deleted.id, 0n), entry(deleted.id, 1n)]);
    expect(outcomes.map(reasonOf)).toEqual(['TRAJECTORY_NOT_FOUND', 'TRAJECTORY_NOT_FOUND']);
    expect(lookedUp).toEqual([[deleted.id]]);
    await app.close();
  });

  it('W14: of a trajectory that was created anew are written to the new one, in order', async () => {
    const here = on.scene();
    const old = await here.create();
    await commitEntries(here.app, here.caller, [entry(old.id, 0n)]);
    await on.store.deleteTrajectory(here.caller.namespace, old.id, 'REFUSE');
    const made = await here.create({ id: old.id });
    const entries = [0n, 1n, 2n].map((number) => entry(old.id, number));
    const { app, lookedUp } = lookingUp(() => old.ref);
    const outcomes = await commitEntries(app, here.caller, entries.slice(0, 2));
    expect(outcomes.map(duplicatesOf)).toEqual([0, 0]);
    expect(lookedUp).toEqual([[old.id]]);
    expect((await commitEntries(here.app, here.caller, entries)).map(duplicatesOf)).toEqual([1, 1, 0]);
    expect(await here.words(made)).toEqual(['0', '1', '2']);
    await app.close();
  });

  it('W14: fail if the database cannot be asked for the trajectory that they know no more', async () => {
    const here = on.scene();
    const deleted = await here.create();
    await on.store.deleteTrajectory(here.caller.namespace, deleted.id, 'REFUSE');
    const store = wrappedStore(on.store, {
      knownTrajectoryRef: () => deleted.ref,
      findTrajectoryRefs: () => Promise.reject(new DatabaseSilent('DATABASE_UNAVAILABLE', 'silent')),
    });
    const app = on.app({}, store);
    const outcomes = await commitEntries(app, here.caller, [entry(deleted.id, 0n)]);
    expect(outcomes.map(reasonOf)).toEqual(['DATABASE_UNAVAILABLE']);
    await app.close();
  });

  if (on.engine === 'postgres') {
    /** Holds the row of a trajectory in a transaction of another connection. */
    const holding = async (id: string, work: (release: () => Promise<unknown>) => Promise<void>) => {
      const sql = await outsideSql(on.database);
      try {
        await sql.rows('begin');
        await sql.rows(`select 1 from trajectories where id = '${id}' for update`);
        await work(() => sql.rows('commit'));
      } finally {
        await sql.close();
      }
    };

    it('W14: one whose trajectory another transaction holds for too long fails, and nothing of it is stored', async () => {
      const scene = on.scene();
      const [held, free] = [await scene.create(), await scene.create()];
      const entries = [entry(held.id, 0n), entry(free.id, 0n), entry(held.id, 1n)];
      await holding(held.id, async () => {
        const outcomes = await commitEntries(scene.app, scene.caller, entries, 100);
        expect(outcomes.map(reasonOf)).toEqual(['DATABASE_UNAVAILABLE', 'committed', 'DATABASE_UNAVAILABLE']);
      });
      expect(await scene.words(held)).toEqual([]);
      const again = await commitEntries(scene.app, scene.caller, entries, 100);
      expect(again.map(duplicatesOf)).toEqual([0, 1, 0]);
    });

    it('W14: one whose trajectory is released in time is stored, after the others', async () => {
      const scene = on.scene();
      const [held, free] = [await scene.create(), await scene.create()];
      await holding(held.id, async (release) => {
        const outcomes = commitEntries(scene.app, scene.caller, [entry(held.id, 0n), entry(free.id, 0n)], FOREVER);
        while ((await scene.words(free)).length === 0);
        expect(await scene.words(held)).toEqual([]);
        await release();
        expect((await outcomes).map(reasonOf)).toEqual(['committed', 'committed']);
      });
    });
  }
});

function entry(trajectoryId: string, stepNumber: bigint, fields: Partial<NewEntry> = {}): NewEntry {
  const fence = { trajectoryId, uid: undefined, writerEpoch: undefined };
  return { ...fence, ...newSteps([step(stepNumber, `${stepNumber}`)]), tags: [], seal: undefined, ...fields };
}

function reasonOf(outcome: EntryOutcome): string {
  return outcome.kind === 'committed' ? outcome.kind : (outcome.error as AnabranchError).reason;
}

function duplicatesOf(outcome: EntryOutcome): number | undefined {
  return outcome.kind === 'committed' ? outcome.duplicates : undefined;
}
