import { pino } from 'pino';
import { expect, it, vi } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { MergeRequest } from '../../src/store/contract/append.ts';
import { Merging } from '../../src/stream/merging.ts';
import { describeApp, type OnApp, step } from '../service/on_app.ts';
import { logger } from '../store/on_store.ts';
import { Scene } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { wordStep } from '../support/steps.ts';
import { wrappedStore } from '../support/wrapped_store.ts';

/** No round of a test comes by itself. */
const HOUR = 3_600_000;
const mergeBacklogBytes = 1024 * 1024;

describeApp('merging', (on) => {
  it('rows of a trajectory are merged when it has grown by a row, and the rest when it is sealed', async () => {
    const app = on.app({ mergeIdleMs: HOUR });
    const scene = on.scene(app);
    const made = await scene.create();
    const words = (from: number, to: number) =>
      Array.from({ length: to - from }, (_, i) => step(BigInt(from + i), `word ${from + i}`));
    for (let at = 0; at < 300; at += 60) await scene.write(made, words(at, at + 60));
    await app.merging.idle();
    expect((await rowsOf(on, made))[0]).toEqual({
      from: 0,
      to: expect.toSatisfy((to: number) => to > 200),
      encoding: 2,
    });
    await scene.write(made, words(300, 310), { status: 'COMPLETED', message: '' });
    await app.merging.idle();
    expect(await rowsOf(on, made)).toHaveLength(2);
    expect(await scene.words(made)).toEqual(Array.from({ length: 310 }, (_, i) => `word ${i}`));
    await app.close();
  });

  it('the last rows of a trajectory that does not grow are merged, also those of an earlier process', async () => {
    const scene = new Scene(on.store);
    const [known, left] = [await scene.create(), await scene.create()];
    for (const made of [known, left]) await appendSingly(scene, made, 5);
    const merging = new Merging(on.store, logger, { mergeIdleMs: 20, mergeBacklogBytes });
    merging.note({ ref: known.ref, steps: 5, bytes: 500, sealed: false });
    for (const made of [known, left]) {
      await vi.waitFor(async () => expect(await rowsOf(on, made)).toHaveLength(1), { timeout: 20_000, interval: 20 });
    }
    await merging.stop();
    expect(await scene.words(left)).toHaveLength(5);
  });

  it('a failure is logged and ends no later merge', async () => {
    const scene = new Scene(on.store);
    const made = await scene.create();
    await appendSingly(scene, made, 5);
    const warnings: string[] = [];
    const recorder = pino({ level: 'warn' }, { write: (line: string) => void warnings.push(line) });
    let failures = 1;
    const flaky = wrappedStore(on.store, {
      mergeSteps: (requests) => {
        failures -= 1;
        return failures === 0 ? Promise.reject(new Error('disk full')) : on.store.mergeSteps(requests);
      },
    });
    const merging = new Merging(flaky, recorder, { mergeIdleMs: HOUR, mergeBacklogBytes });
    merging.note({ ref: made.ref, steps: 5, bytes: 500, sealed: true });
    await merging.idle();
    expect(warnings.join()).toContain('segments could not be merged');
    expect(await rowsOf(on, made)).toHaveLength(5);
    merging.note({ ref: made.ref, steps: 0, bytes: 0, sealed: true });
    await merging.idle();
    expect(await rowsOf(on, made)).toHaveLength(1);
    await merging.stop();
  });

  it('a trajectory that cannot be merged does not stop the others', async () => {
    const scene = new Scene(on.store);
    const [broken, whole] = [await scene.create(), await scene.create()];
    for (const made of [broken, whole]) await appendSingly(scene, made, 5);
    const flaky = wrappedStore(on.store, {
      mergeSteps: (requests) =>
        requests.some(({ ref }) => ref.key === broken.ref.key)
          ? Promise.reject(new Error('broken'))
          : on.store.mergeSteps(requests),
    });
    const merging = new Merging(flaky, logger, { mergeIdleMs: HOUR, mergeBacklogBytes });
    for (const { ref } of [broken, whole]) merging.note({ ref, steps: 5, bytes: 500, sealed: true });
    await merging.idle();
    expect([await rowsOf(on, broken), await rowsOf(on, whole)].map((rows) => rows.length)).toEqual([5, 1]);
    await merging.stop();
  });

  it('stops after the transaction that is under way, and merges nothing later', async () => {
    const scene = new Scene(on.store);
    const made = await scene.create();
    const [begun, go] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const calls: (readonly MergeRequest[])[] = [];
    const slow = wrappedStore(on.store, {
      mergeSteps: async (requests) => {
        calls.push(requests);
        begun.resolve();
        await go.promise;
        return [...requests];
      },
    });
    const merging = new Merging(slow, logger, { mergeIdleMs: HOUR, mergeBacklogBytes });
    merging.note({ ref: made.ref, steps: 1000, bytes: 0, sealed: false });
    await begun.promise;
    const stopped = merging.stop();
    go.resolve();
    await stopped;
    merging.note({ ref: made.ref, steps: 1000, bytes: 0, sealed: true });
    await merging.idle();
    expect(calls).toEqual([[{ ref: made.ref, rest: false, steps: 1000 }]]);
  });

  it('appends wait while much waits to be merged, which is logged once, and go on after a merge', async () => {
    const warnings: string[] = [];
    const recorder = pino({ level: 'warn' }, { write: (line: string) => void warnings.push(line) });
    const calls: PromiseWithResolvers<void>[] = [];
    const begun = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    // Each merge replaces 1,000 steps.
    const slow = wrappedStore(on.store, {
      mergeSteps: async (requests) => {
        const call = Promise.withResolvers<void>();
        begun[calls.push(call) - 1]?.resolve();
        await call.promise;
        return requests.flatMap((each) => (each.steps! > 1000 ? [{ ...each, steps: each.steps! - 1000 }] : []));
      },
    });
    const merging = new Merging(slow, recorder, { mergeIdleMs: HOUR, mergeBacklogBytes });
    const ref = { tree: 1n, key: 1n };
    merging.note({ ref, steps: 3000, bytes: mergeBacklogBytes, sealed: false });
    expect(merging.room()).toBeUndefined();
    merging.note({ ref, steps: 1000, bytes: mergeBacklogBytes / 4, sealed: false });
    const room = merging.room();
    expect(room).toBeInstanceOf(Promise);
    expect(merging.room()).toBe(room);
    await begun[0]!.promise;
    calls[0]!.resolve();
    await room;
    expect(merging.room()).toBeUndefined();
    await begun[1]!.promise;
    expect(warnings).toEqual([expect.stringContaining('appends wait')]);
    for (let i = 1; merging.isWorking; i += 1) {
      calls[i]?.resolve();
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(calls).toHaveLength(4);
    await merging.stop();
  });

  it('steps in rows that were compressed before the commit keep no append waiting, and are merged past', async () => {
    const calls: (readonly MergeRequest[])[] = [];
    const store = wrappedStore(on.store, {
      mergeSteps: async (requests) => {
        calls.push(requests);
        return [];
      },
    });
    const merging = new Merging(store, logger, { mergeIdleMs: HOUR, mergeBacklogBytes: 1 });
    const ref = { tree: 1n, key: 1n };
    const compressed = { ref, steps: 0, bytes: 0, sealed: false };
    merging.note({ ...compressed, compressedSteps: 10_000 });
    expect([merging.isWorking, merging.room()]).toEqual([false, undefined]);
    merging.note({ ...compressed, compressedSteps: 10_000 });
    expect([merging.isWorking, merging.room()]).toEqual([true, undefined]);
    await merging.idle();
    expect(calls).toEqual([[{ ref, rest: false, steps: 0 }]]);
    await merging.stop();
  });

  it('what cannot be merged keeps no append waiting', async () => {
    const failing = wrappedStore(on.store, { mergeSteps: () => Promise.reject(new Error('broken')) });
    const merging = new Merging(failing, logger, { mergeIdleMs: HOUR, mergeBacklogBytes });
    const ref = { tree: 1n, key: 1n };
    merging.note({ ref, steps: 1000, bytes: 2 * mergeBacklogBytes, sealed: true });
    await merging.room();
    expect(merging.room()).toBeUndefined();
    await merging.stop();
  });

  it('a batch of more than a row waits for no merge', async () => {
    const app = on.app({ mergeIdleMs: HOUR });
    const scene = on.scene(app);
    const made = await scene.create();
    await scene.write(
      made,
      Array.from({ length: 256 + 200 }, (_, i) => step(BigInt(i), `word ${i}`)),
    );
    expect(app.merging.isWorking).toBe(false);
    expect((await rowsOf(on, made)).map(({ to, encoding }) => [to, encoding])).toEqual([
      [256, 2],
      [456, 2],
    ]);
    await app.close();
  });

  it('a writer that is faster than merges has all its steps stored', async () => {
    const app = on.app({ mergeIdleMs: HOUR, mergeBacklogBytes: 1 });
    const scene = on.scene(app);
    const made = await scene.create();
    const words = Array.from({ length: 1200 }, (_, i) => `word ${i}`);
    for (let at = 0; at < 1200; at += 300)
      await scene.write(
        made,
        words.slice(at, at + 300).map((word, i) => step(BigInt(at + i), word)),
      );
    expect(await scene.words(made)).toEqual(words);
    await app.close();
  });
});

async function appendSingly(scene: Scene, made: Trajectory, count: number): Promise<void> {
  for (let i = 0; i < count; i += 1) await scene.append(made, [wordStep(BigInt(i), `word ${i}`)]);
}

async function rowsOf(on: OnApp, { ref }: Trajectory) {
  const sql = await outsideSql(on.database);
  try {
    const rows = await sql.rows(`select first_step_number, next_step_number, encoding from segments
      where tree = ${ref.tree} and trajectory = ${ref.key} order by first_step_number`);
    return rows.map((row) => {
      return { from: Number(row.first_step_number), to: Number(row.next_step_number), encoding: Number(row.encoding) };
    });
  } finally {
    await sql.close();
  }
}
