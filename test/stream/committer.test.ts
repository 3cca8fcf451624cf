import { expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { PackedStep } from '../../src/domain/step_codec/packed_step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { AppendBatch, AppendStore } from '../../src/store/contract/append.ts';
import { Contended, DatabaseSilent } from '../../src/store/contract/store.ts';
import { type BatchSource, type Committed, Committer } from '../../src/stream/append/committer.ts';
import { type AppScene, describeApp, wordOf } from '../service/on_app.ts';
import { logger } from '../store/on_store.ts';
import { putState } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { packed, unpacked } from '../support/packed_steps.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';

describeApp('group commit', (on) => {
  it('W7: batches that have arrived from all streams are committed together', async () => {
    const { committer, calls, scene } = await setUp();
    const trajectories = await Promise.all(Array.from({ length: 20 }, () => scene.create()));
    const sources = trajectories.map((trajectory) => {
      const source = new RecordingSource();
      committer.submit(source, batch(scene, trajectory, [0n], 'a'), 10);
      committer.submit(source, batch(scene, trajectory, [1n], 'b'), 10);
      return source;
    });
    await committer.idle();
    expect(calls).toMatchObject([{ wait: 'never', batches: { length: 40 } }]);
    for (const source of sources) expect(source.ends).toEqual([1n, 2n]);
  });

  it('W7: while one group commits, batches for the next are collected', async () => {
    const gate = Promise.withResolvers<void>();
    const { committer, calls, scene } = await setUp({ before: (n) => (n === 0 ? gate.promise : undefined) });
    const trajectory = await scene.create();
    const source = new RecordingSource();
    committer.submit(source, batch(scene, trajectory, [0n]), 10);
    await until(() => calls.length === 1);
    for (let i = 1n; i < 6n; i += 1n) committer.submit(source, batch(scene, trajectory, [i]), 10);
    gate.resolve();
    await committer.idle();
    expect(calls.map(({ batches }) => batches.length)).toEqual([1, 5]);
    expect(source.ends).toEqual([1n, 2n, 3n, 4n, 5n, 6n]);
  });

  it('W7: a group waits for room, and has the batches that come meanwhile', async () => {
    const rooms = [Promise.withResolvers<void>(), undefined];
    const asked = Promise.withResolvers<void>();
    const room = () => {
      asked.resolve();
      return rooms.shift()?.promise;
    };
    const [gate] = rooms;
    const { committer, calls, scene } = await setUp({ room });
    const trajectory = await scene.create();
    const source = new RecordingSource();
    committer.submit(source, batch(scene, trajectory, [0n]), 10);
    await asked.promise;
    committer.submit(source, batch(scene, trajectory, [1n]), 10);
    expect(calls).toEqual([]);
    gate!.resolve();
    await committer.idle();
    expect(calls.map(({ batches }) => batches.length)).toEqual([2]);
    expect(source.ends).toEqual([1n, 2n]);
  });

  it('O1: a trajectory keeps its order, however small the groups are', async () => {
    const { committer, calls, scene } = await setUp({ groupSteps: 7, commitsAtOnce: 3 });
    const trajectories = await Promise.all([scene.create(), scene.create(), scene.create()]);
    const sources = trajectories.map(() => new RecordingSource());
    for (let i = 0n; i < 40n; i += 2n) {
      trajectories.forEach((trajectory, k) => {
        committer.submit(sources[k]!, batch(scene, trajectory, [i, i + 1n]), 10);
      });
    }
    await committer.idle();
    for (const { batches } of calls) expect(batches.length).toBeLessThanOrEqual(3);
    for (const source of sources) expect(source.ends).toEqual(Array.from({ length: 20 }, (_, i) => BigInt(i * 2 + 2)));
  });

  it('W7: a batch larger than a group is committed alone', async () => {
    const { committer, calls, scene } = await setUp({ groupSteps: 2, groupBytes: 100 });
    const trajectory = await scene.create();
    const source = new RecordingSource();
    committer.submit(source, batch(scene, trajectory, [0n, 1n, 2n]), 1000);
    committer.submit(source, batch(scene, trajectory, [3n]), 10);
    await committer.idle();
    expect(calls.map(({ batches }) => batches.length)).toEqual([1, 1]);
    expect(source.ends).toEqual([3n, 4n]);
  });

  it('W7, MS5: what does not fit into a group waits, the trajectories of several principals in turn', async () => {
    const { committer, calls, scene } = await setUp({ groupSteps: 2 });
    const submit = async (actor: string) => {
      const trajectory = await scene.create();
      const source = new RecordingSource();
      const own = { ...batch(scene, trajectory, [0n]), caller: { ...scene.caller, actor } };
      return { source, begin: () => committer.submit(source, own, 10) };
    };
    const all = await Promise.all([...Array.from({ length: 5 }, () => 'many'), 'one', 'other'].map(submit));
    for (const { begin } of all) begin();
    await committer.idle();
    const actors = calls.map(({ batches }) => batches.map(({ caller }) => caller.actor));
    expect(actors).toEqual([['many', 'one'], ['other', 'many'], ['many', 'many'], ['many']]);
    for (const { source } of all) expect(source.ends).toEqual([1n]);
  });

  it('W7: concurrent groups share no trajectory', async () => {
    const gates = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const { committer, calls, scene } = await setUp({ commitsAtOnce: 2, before: (n) => gates[n]?.promise });
    const [one, other] = [await scene.create(), await scene.create()];
    const source = new RecordingSource();
    committer.submit(source, batch(scene, one, [0n]), 10);
    await until(() => calls.length === 1);
    committer.submit(source, batch(scene, one, [1n]), 10);
    const second = new RecordingSource();
    committer.submit(second, batch(scene, other, [0n]), 10);
    await until(() => calls.length === 2);
    expect(calls[1]!.batches.map(({ trajectoryId }) => trajectoryId)).toEqual([other.id]);
    for (const gate of gates) gate.resolve();
    await committer.idle();
    expect(source.ends).toEqual([1n, 2n]);
  });

  it('W7: only the refused trajectory is refused, and later batches of its stream are dropped', async () => {
    const { committer, calls, scene } = await setUp();
    const [good, bad] = [await scene.create(), await scene.create()];
    const goodSource = new RecordingSource();
    const badSource = new RecordingSource();
    committer.submit(badSource, batch(scene, bad, [0n]), 10);
    committer.submit(badSource, batch(scene, bad, [5n]), 10);
    committer.submit(badSource, batch(scene, bad, [1n]), 10);
    committer.submit(goodSource, batch(scene, good, [0n]), 10);
    await committer.idle();
    expect(calls).toHaveLength(1);
    expect(goodSource.ends).toEqual([1n]);
    expect(badSource.ends).toEqual([1n]);
    expect(badSource.error).toMatchObject({ reason: 'STEP_GAP' });
    expect(committer.pending).toBe(0);
    expect(await words(scene, bad)).toEqual(['x']);
  });

  it('W7, F1: the refusal of a fenced stream does not affect the stream that fenced it', async () => {
    const { committer, scene } = await setUp();
    const trajectory = await scene.create();
    (await scene.open(trajectory)).abandon();
    (await scene.open(trajectory)).abandon();
    const [fenced, current] = [new RecordingSource(), new RecordingSource()];
    committer.submit(fenced, batch(scene, trajectory, [0n], 'late', 1n), 10);
    committer.submit(current, batch(scene, trajectory, [0n], 'mine', 2n), 10);
    committer.submit(fenced, batch(scene, trajectory, [1n], 'late', 1n), 10);
    await committer.idle();
    expect(fenced.error).toMatchObject({ reason: 'WRITER_FENCED' });
    expect(current.ends).toEqual([1n]);
    expect(await words(scene, trajectory)).toEqual(['mine']);
  });

  it('W7: a batch that the store cannot write fails alone; earlier ones and those of others are stored', async () => {
    const { committer, scene } = await setUp({
      fault: (batches) => (batches.some(({ steps }) => steps.some(isPoison)) ? new Error('poison') : undefined),
    });
    const [good, bad] = [await scene.create(), await scene.create()];
    const goodSource = new RecordingSource();
    const badSource = new RecordingSource();
    committer.submit(badSource, batch(scene, bad, [0n], 'fine'), 10);
    committer.submit(goodSource, batch(scene, good, [0n], 'a'), 10);
    committer.submit(badSource, batch(scene, bad, [1n], 'poison'), 10);
    committer.submit(badSource, batch(scene, bad, [2n], 'behind'), 10);
    committer.submit(goodSource, batch(scene, good, [1n], 'b'), 10);
    await committer.idle();
    expect(badSource.error).toMatchObject({ message: 'poison' });
    expect(badSource.ends).toEqual([1n]);
    expect(await words(scene, bad)).toEqual(['fine']);
    expect(goodSource.ends).toEqual([1n, 2n]);
  });

  it('W7: batches that take longer do not delay plain ones, are committed together, and keep the order of their trajectories', async () => {
    const gate = Promise.withResolvers<void>();
    const isSlow = ({ seal }: AppendBatch) => seal !== undefined;
    const { committer, calls, scene } = await setUp({
      before: (n) => (calls[n]!.batches.length === 3 && calls[n]!.batches.some(isSlow) ? gate.promise : undefined),
    });
    const trajectories = await Promise.all(Array.from({ length: 4 }, () => scene.create()));
    const sources = trajectories.map(() => new RecordingSource());
    const submit = (i: number, number: bigint, more: Partial<AppendBatch> = {}) =>
      committer.submit(sources[i]!, { ...batch(scene, trajectories[i]!, [number]), ...more }, 10);
    for (const i of trajectories.keys()) submit(i, 0n);
    await committer.idle();
    submit(0, 1n);
    submit(1, 1n);
    submit(2, 1n, { tags: [{ name: 'last', stepNumber: 1n }] });
    submit(2, 2n);
    submit(3, 1n, { seal: { status: 'COMPLETED', message: '' } });
    await until(() => sources[0]!.ends.length === 2);
    submit(0, 2n);
    submit(1, 2n);
    await until(() => sources[1]!.ends.length === 3);
    expect(sources.map(({ ends }) => ends)).toEqual([[1n, 2n, 3n], [1n, 2n, 3n], [1n], [1n]]);
    gate.resolve();
    await committer.idle();
    expect(sources.map(({ ends, error }) => [ends, error])).toEqual([
      [[1n, 2n, 3n], undefined],
      [[1n, 2n, 3n], undefined],
      [[1n, 2n, 3n], undefined],
      [[1n, 2n], undefined],
    ]);
    expect(calls.map(({ batches }) => batches.length)).toEqual([4, 5, 3, 2]);
  });

  it('A1, D4: an outage fails the whole group at once, without retrying its parts', async () => {
    let down = true;
    const outage = new AnabranchError('DATABASE_UNAVAILABLE', 'down');
    const { committer, calls, scene } = await setUp({ fault: () => (down ? outage : undefined) });
    const trajectories = [await scene.create(), await scene.create()];
    const sources = trajectories.map(() => new RecordingSource());
    trajectories.forEach((trajectory, k) => {
      committer.submit(sources[k]!, batch(scene, trajectory, [0n]), 10);
      committer.submit(sources[k]!, batch(scene, trajectory, [1n]), 10);
    });
    await committer.idle();
    expect(calls).toHaveLength(1);
    for (const source of sources) expect(source.error).toBe(outage);
    down = false;
    const again = new RecordingSource();
    committer.submit(again, batch(scene, trajectories[0]!, [0n, 1n]), 10);
    await committer.idle();
    expect(again.ends).toEqual([2n]);
  });

  it('A1: when the database is silent, waiting groups fail with the groups that noticed it, without an attempt', async () => {
    const silent = new DatabaseSilent('DATABASE_UNAVAILABLE', 'silent');
    const gate = Promise.withResolvers<void>();
    let down = true;
    const { committer, calls, scene } = await setUp({
      commitsAtOnce: 2,
      groupSteps: 1,
      before: () => (down ? gate.promise : undefined),
      fault: () => (down ? silent : undefined),
    });
    const trajectories = await Promise.all(Array.from({ length: 12 }, () => scene.create()));
    const sources = trajectories.map((trajectory) => {
      const source = new RecordingSource();
      committer.submit(source, batch(scene, trajectory, [0n]), 10);
      committer.submit(source, batch(scene, trajectory, [1n]), 10);
      return source;
    });
    await until(() => calls.length === 2);
    gate.resolve();
    await committer.idle();
    expect(calls).toHaveLength(2);
    for (const source of sources) expect(source.error).toBe(silent);
    down = false;
    const again = new RecordingSource();
    committer.submit(again, batch(scene, trajectories[0]!, [0n]), 10);
    await committer.idle();
    expect(again.ends).toEqual([1n]);
  });

  it('W7: of a group that locks delay, batches that need not wait commit, and the others wait alone', async () => {
    const { committer, calls, scene } = await setUp({
      fault: (batches) =>
        batches.some(({ steps }) => steps.some(isPoison)) && calls.at(-1)?.wait === 'never'
          ? new Contended('DATABASE_UNAVAILABLE', 'held')
          : undefined,
    });
    const trajectories = await Promise.all(Array.from({ length: 8 }, () => scene.create()));
    const sources = trajectories.map((trajectory, i) => {
      const source = new RecordingSource();
      committer.submit(source, batch(scene, trajectory, [0n], i === 5 ? 'poison' : 'fine'), 10);
      return source;
    });
    await committer.idle();
    for (const source of sources) expect(source.ends).toEqual([1n]);
    // The whole group; one half, which commits; the other half, and its halves.
    expect(calls.map(({ batches, wait }) => [batches.length, wait])).toEqual([
      [8, 'never'],
      [4, 'never'],
      [4, 'never'],
      [2, 'never'],
      [1, 'never'],
      [1, 'never'],
      [1, 'bounded'],
      [2, 'never'],
    ]);
  });

  if (on.engine === 'postgres') {
    it('W7: a group proceeds while another transaction locks a state that one of its batches refers to', async () => {
      const { committer, scene } = await setUp();
      const held = newState('held');
      await putState(on.store, scene.caller.namespace, held.data);
      const trajectories = [await scene.create(), await scene.create(), await scene.create()];
      const sql = await outsideSql(on.database);
      try {
        await sql.rows('begin');
        await sql.rows(
          `select 1 from states where namespace = '${scene.caller.namespace}' and digest = '\\x${held.digest}' for update`,
        );
        const sources = trajectories.map((trajectory, i) => {
          const source = new RecordingSource();
          const steps = [packed(makeStep(0n, i === 1 ? { states: [stateRef(held)] } : {}))];
          committer.submit(source, { ...batch(scene, trajectory, [0n]), steps }, 10);
          return source;
        });
        await until(() => sources[0]!.ends.length + sources[2]!.ends.length === 2);
        expect(sources[1]).toMatchObject({ ends: [], error: undefined });
        await sql.rows('commit');
        await committer.idle();
        expect(sources[1]!.ends).toEqual([1n]);
      } finally {
        await sql.close();
      }
    });

    it('W7: a locked trajectory waits alone, keeps its order, and delays no other', async () => {
      const { committer, calls, scene } = await setUp();
      const [held, free] = [await scene.create(), await scene.create()];
      const sql = await outsideSql(on.database);
      try {
        await sql.rows('begin');
        await sql.rows(`select 1 from trajectories where id = '${held.id}' for update`);
        const [waiting, going] = [new RecordingSource(), new RecordingSource()];
        committer.submit(waiting, batch(scene, held, [0n], 'a'), 10);
        committer.submit(going, batch(scene, free, [0n], 'b'), 10);
        await until(() => going.ends.length === 1);
        committer.submit(waiting, batch(scene, held, [1n], 'c'), 10);
        committer.submit(going, batch(scene, free, [1n], 'd'), 10);
        await until(() => going.ends.length === 2);
        expect(waiting.ends).toEqual([]);
        await sql.rows('commit');
        await committer.idle();
        expect(waiting.ends).toEqual([1n, 2n]);
        expect(calls.filter(({ wait }) => wait === 'bounded')).toHaveLength(1);
      } finally {
        await sql.close();
      }
    });
  }

  interface Around {
    readonly commitsAtOnce?: number;
    readonly groupSteps?: number;
    readonly groupBytes?: number;
    readonly room?: () => Promise<void> | undefined;
    /** Awaited before the n-th call reaches the store. */
    readonly before?: (n: number) => Promise<void> | undefined;
    /** Thrown instead of calling the store. */
    readonly fault?: (batches: readonly AppendBatch[]) => Error | undefined;
  }

  /** A committer with the real store, whose calls are recorded and can be delayed or made to fail. */
  async function setUp({ before, fault, ...options }: Around = {}) {
    const calls: { batches: readonly AppendBatch[]; wait: string }[] = [];
    const { store } = on;
    const recorded: Pick<AppendStore, 'append'> = {
      async append(batches, wait) {
        calls.push({ batches, wait });
        await before?.(calls.length - 1);
        const error = fault?.(batches);
        if (error !== undefined) throw error;
        return store.append(batches, wait);
      },
    };
    const committer = new Committer(recorded, logger, { commitsAtOnce: 1, ...options });
    return { committer, calls, scene: on.scene() };
  }
});

class RecordingSource implements BatchSource {
  readonly ends: bigint[] = [];
  error: unknown;

  get over(): boolean {
    return this.error !== undefined;
  }

  committed(_batch: AppendBatch, _bytes: number, { nextStepNumber }: Committed): void {
    if (this.over) throw new Error('told of a commit after the failure');
    this.ends.push(nextStepNumber);
  }

  failed(_batch: AppendBatch, _bytes: number, error: unknown): void {
    if (this.over) throw new Error('failed twice');
    this.error = error;
  }
}

function batch(
  { caller }: AppScene,
  { ref, id: trajectoryId }: Trajectory,
  numbers: readonly bigint[],
  word = 'x',
  writerEpoch?: bigint,
): AppendBatch {
  const steps = numbers.map((number) => packed(wordStep(number, word)));
  return { caller, ref, trajectoryId, uid: undefined, writerEpoch, steps, seal: undefined, states: [], tags: [] };
}

function isPoison(step: PackedStep): boolean {
  return wordOf(unpacked(step)) === 'poison';
}

function words(scene: AppScene, trajectory: Trajectory): Promise<string[]> {
  return scene.words(trajectory);
}

/** Lets the event loop turn until the condition holds. */
async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setImmediate(resolve));
}
