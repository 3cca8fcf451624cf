import { expect, it } from 'vitest';
import type { RunNews } from '../../src/stream/runs/run_news.ts';
import { WatchedRun } from '../../src/stream/runs/watch.ts';
import type { SeriesShown } from '../../src/stream/runs/watch_series.ts';
import { describeApp } from '../service/on_app.ts';
import { openOn } from '../store/on_store.ts';
import { RunScene } from '../store/run_scene.ts';
import { refusalOf } from '../store/scene.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type Shown, watching } from './watching.ts';

type RunShown = Shown<RunNews>;

const NEVER = 3_600_000;

/** What a client of a watch knows. */
class Mirror {
  readonly series = new Map<string, SeriesShown>();
  caughtUp = false;
  readonly #watching: AsyncGenerator<RunShown, void, undefined>;

  constructor(watching: AsyncGenerator<RunShown, void, undefined>) {
    this.#watching = watching;
  }

  /** Takes messages up to one about series. */
  async next(): Promise<SeriesShown[]> {
    for (;;) {
      const { value } = await this.#watching.next();
      if (value === undefined) throw new Error('the watch has ended');
      this.caughtUp = value.caughtUp;
      for (const each of value.series) this.series.set(`${each.stageId}${each.name}`, each);
      if (value.series.length > 0) return [...value.series];
    }
  }

  async until(name: string, points: bigint): Promise<SeriesShown> {
    for (;;) {
      const found = this.series.get(name);
      if (found?.points === points) return found;
      await this.next();
    }
  }

  end() {
    return this.#watching.return();
  }
}

describeApp('a run that is watched with series', (on) => {
  async function watched(
    use: (scene: RunScene, watch: (id: string) => Mirror) => Promise<void>,
    { store = on.store, pollMs = NEVER } = {},
  ) {
    const app = on.app({ watchMs: 1, pollMs, progressMs: NEVER }, store);
    const scene = new RunScene(on.store);
    const args = { allStages: false, untilTerminal: false, series: true };
    try {
      await use(
        scene,
        (runId) => new Mirror(watching(app, () => WatchedRun.open(app, scene.caller, { runId, ...args }))),
      );
      expect(app.changes.listeners, 'nobody listens any more').toBe(0);
    } finally {
      await app.close();
    }
  }

  const points = (name: string, from: number, values: readonly number[], stageId?: string) =>
    values.map((value, i) => ({ name, metricStep: BigInt(from + i), value, stageId }));

  it('M5: starts with all series of the run and its stages: points, last step and last value', () =>
    watched(async (scene, watch) => {
      const run = await scene.makeRun({ status: 'RUNNING' });
      const stage = await scene.stage(run, { number: 1n });
      await scene.store.logMetrics(scene.namespace, run.id, [
        ...points('loss', -2, [3, Number.NaN, 1]),
        ...points('loss', 7, [5], stage.id),
        ...points('last', 0, [1, Number.NaN]),
      ]);
      const mirror = watch(run.id);
      await mirror.next();
      const loss = { name: 'loss', points: 3n, lastStep: 0n, lastValue: 1, changedFrom: -2n };
      expect([...mirror.series.values()]).toEqual([
        { stageId: '', name: 'last', points: 2n, lastStep: 1n, lastValue: Number.NaN, changedFrom: 0n },
        { stageId: '', ...loss },
        { stageId: stage.id, name: 'loss', points: 1n, lastStep: 7n, lastValue: 5, changedFrom: 7n },
      ]);
      await mirror.end();
    }));

  it('M5: then sends each series that was written, and the lowest step that changed, without a poll', () =>
    watched(async (scene, watch) => {
      const run = await scene.makeRun({ status: 'RUNNING' });
      const log = (...some: ReturnType<typeof points>) => scene.store.logMetrics(scene.namespace, run.id, some);
      await log(...points('a', 0, [1, 2, 3]), ...points('b', 0, [1]));
      const mirror = watch(run.id);
      await mirror.until('b', 1n);
      await log(...points('a', 3, [4, 5]));
      expect(await mirror.next()).toMatchObject([
        { name: 'a', points: 5n, lastStep: 4n, lastValue: 5, changedFrom: 3n },
      ]);
      // A point between others, and one that is replaced.
      await log(...points('a', 2, [9]), ...points('b', 10, [2]));
      await mirror.until('b', 2n);
      expect(mirror.series.get('a')).toMatchObject({ points: 5n, changedFrom: 2n, lastValue: 5 });
      expect(mirror.series.get('b')).toMatchObject({ points: 2n, changedFrom: 10n, lastStep: 10n });
      await log(...points('b', 5, [1]), ...points('new', 5, [1]));
      await mirror.until('new', 1n);
      expect(await mirror.until('b', 3n)).toMatchObject({ changedFrom: 5n, lastStep: 10n, lastValue: 2 });
      await mirror.end();
    }));

  it('M5: counts stay right while points are appended, inserted and replaced in any order', () =>
    watched(async (scene, watch) => {
      const run = await scene.makeRun({ status: 'RUNNING' });
      const steps = new Set<number>();
      const mirror = watch(run.id);
      for (const from of [100, 101, 50, 60, 55, 200, 0, 100, 150, 201]) {
        for (let i = 0; i < 3; i += 1) steps.add(from + i);
        await scene.store.logMetrics(scene.namespace, run.id, points('m', from, [from, from, from]));
        const shown = (await mirror.next()).at(-1);
        expect(shown).toMatchObject({ points: BigInt(steps.size), lastStep: BigInt(Math.max(...steps)) });
        expect(shown?.changedFrom).toBe(BigInt(from));
      }
      await mirror.end();
    }));

  it('M5: appended points of all series are read by few statements, which count only the new points', async () => {
    const ranges: unknown[] = [];
    let listed = 0;
    const store = wrappedStore(on.store, {
      measureSeries: (namespace, keys, range) => {
        ranges.push(range);
        return on.store.measureSeries(namespace, keys, range);
      },
      listSeries: (...args) => {
        listed += 1;
        return on.store.listSeries(...args);
      },
    });
    await watched(
      async (scene, watch) => {
        const run = await scene.makeRun({ status: 'RUNNING' });
        const keys = Array.from({ length: 150 }, (_, i) => `s${i}`);
        const log = (at: number) =>
          scene.store.logMetrics(
            scene.namespace,
            run.id,
            keys.flatMap((key) => points(key, at, [at])),
          );
        const mirror = watch(run.id);
        await log(0);
        for (const key of keys) await mirror.until(key, 1n);
        [ranges.length, listed] = [0, 0];
        await log(1);
        for (const key of keys) await mirror.until(key, 2n);
        await log(2);
        for (const key of keys) await mirror.until(key, 3n);
        const tail = (from: bigint) => ({ from, to: undefined });
        expect(ranges).toEqual([tail(1n), { from: 0n, to: 1n }, tail(2n), { from: 1n, to: 2n }]);
        expect(listed).toBe(0);
        await mirror.end();
      },
      { store },
    );
  });

  it('M5: after a lost hint all series may have changed, and polls find new points without hints', async () => {
    let lose: (() => void) | undefined;
    const store = wrappedStore(on.store, {
      onChange: (listener) => {
        lose = () => listener(undefined);
        return () => undefined;
      },
    });
    await watched(
      async (scene, watch) => {
        const run = await scene.makeRun({ status: 'RUNNING' });
        await scene.store.logMetrics(scene.namespace, run.id, points('m', 0, [1, 2, 3]));
        const mirror = watch(run.id);
        await mirror.until('m', 3n);
        await scene.store.logMetrics(scene.namespace, run.id, points('m', 3, [4]));
        expect(await mirror.until('m', 4n)).toMatchObject({ changedFrom: 3n });
        await scene.store.logMetrics(scene.namespace, run.id, points('found', 9, [4]));
        expect(await mirror.until('found', 1n)).toMatchObject({ changedFrom: 9n });
        await scene.store.logMetrics(scene.namespace, run.id, points('m', 1, [-1]));
        lose?.();
        while (mirror.series.get('m')?.changedFrom !== 0n) await mirror.next();
        await mirror.end();
      },
      { store, pollMs: 20 },
    );
  });

  // On SQLite, one process has the file.
  it.runIf(on.engine === 'postgres')(
    'M5: points that another instance wrote are reported with their lowest step',
    async () => {
      const other = await openOn(on.database);
      try {
        await watched(async (scene, watch) => {
          const run = await scene.makeRun({ status: 'RUNNING' });
          await other.logMetrics(scene.namespace, run.id, points('m', 0, [1, 2, 3]));
          const mirror = watch(run.id);
          await mirror.until('m', 3n);
          // Hints arrive in order, but may be late: then a report includes the hints of earlier points.
          for (let step = 3; ; step += 1) {
            await other.logMetrics(scene.namespace, run.id, points('m', step, [step]));
            const seen = await mirror.until('m', BigInt(step + 1));
            expect(seen.lastValue).toBe(step);
            if (seen.changedFrom === BigInt(step)) break;
          }
          await other.logMetrics(scene.namespace, run.id, points('m', 1, [9]));
          while (mirror.series.get('m')?.changedFrom !== 1n) await mirror.next();
          await mirror.end();
        });
      } finally {
        await other.close();
      }
    },
  );

  it('RUN_DELETED ends the watch of a run that is deleted', () =>
    watched(async (scene, watch) => {
      const run = await scene.makeRun({ status: 'RUNNING' });
      await scene.store.logMetrics(scene.namespace, run.id, points('m', 0, [1]));
      const mirror = watch(run.id);
      await mirror.next();
      const rest = refusalOf(mirror.until('m', 99n));
      await scene.store.deleteRun(scene.namespace, run.id, 'REFUSE');
      expect(await rest).toMatchObject({ reason: 'RUN_DELETED' });
    }));
});
