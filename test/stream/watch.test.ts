import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import type { Run } from '../../src/domain/run.ts';
import type { Horizon } from '../../src/store/contract/run.ts';
import type { Store } from '../../src/store/contract/store.ts';
import type { App } from '../../src/stream/app.ts';
import type { RunNews } from '../../src/stream/runs/run_news.ts';
import { WatchedRun, type WatchedRunArgs } from '../../src/stream/runs/watch.ts';
import type { AppSettings } from '../../src/stream/settings.ts';
import { all, describeApp } from '../service/on_app.ts';
import { servicesOf } from '../service/services.ts';
import { RunScene, SILENT, substepPlan } from '../store/run_scene.ts';
import { refusalOf } from '../store/scene.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type Shown, watching } from './watching.ts';

type RunShown = Shown<RunNews>;

const NEVER = 3_600_000;

describeApp('a watched run', (on) => {
  /** An app whose watchers read without a delay, and a namespace of it. */
  async function withApp(settings: Partial<AppSettings>, use: (watcher: Watcher) => Promise<void>, store?: Store) {
    const app = on.app({ watchMs: 1, pollMs: 20, progressMs: NEVER, ...settings }, store);
    try {
      await use(new Watcher(app, on.store));
      expect(app.changes.listeners, 'nobody listens any more').toBe(0);
    } finally {
      await app.close();
    }
  }

  it('M5: starts with the run, its open stages and its progress, and with all stages on request', () =>
    withApp({}, async (watcher) => {
      const run = await watcher.makeRun({ plan: substepPlan(4, 2), status: 'RUNNING', configJson: '{"lr":1}' });
      const done = await watcher.stage(run, { number: 0n, status: 'RUNNING' });
      await watcher.store.moveStage(watcher.caller, done.id, 'complete', SILENT);
      await watcher.stage(run, { number: 1n, status: 'RUNNING', metadataJson: '{}' });
      await watcher.stage(run, { kind: 'EVAL', number: 1n });
      for (const [allStages, numbers] of [
        [false, ['TRAIN_STEP 1', 'EVAL 1']],
        [true, ['TRAIN_STEP 0', 'TRAIN_STEP 1', 'EVAL 1']],
      ] as const) {
        const watching = watcher.watch(run, { allStages });
        const { value: shown } = (await watching.next()) as { value: RunShown };
        expect(shown.run).toMatchObject({ id: run.id, status: 'RUNNING', configJson: '', metadataJson: '' });
        expect(shown.stages.map(({ kind, number }) => `${kind} ${number}`).sort()).toEqual([...numbers].sort());
        expect(shown.stages.every(({ metadataJson }) => metadataJson === '')).toBe(true);
        expect(shown).toMatchObject({ caughtUp: true, progress: { percent: 20 } }); // one of five stages
        await watching.return();
      }
    }));

  it('M5: then sends the current value of each changed row, with increasing revision, and no other rows', () =>
    // A look at a poll could read the rows before a change, and the progress after it.
    withApp({ pollMs: NEVER }, async (watcher) => {
      const run = await watcher.makeRun({ plan: substepPlan(2, 4), status: 'RUNNING' });
      const [one, other] = [await watcher.stage(run, { number: 1n }), await watcher.stage(run, { number: 2n })];
      const watching = watcher.watch(run);
      const first = (await watching.next()).value!;
      await watcher.store.updateStage(watcher.namespace, one.id, { completedSubsteps: 2n });
      const second = (await watching.next()).value!;
      expect(second).toMatchObject({ run: undefined, stages: [{ id: one.id, completedSubsteps: 2n }], caughtUp: true });
      expect(second.stages).toHaveLength(1);
      expect(second.progress).toMatchObject({ substepsDone: 2n });
      expect(second.stages[0]!.revision).toBeGreaterThan(first.stages.find(({ id }) => id === one.id)!.revision);
      await watcher.move(run, 'pause', { message: 'for lunch' });
      const third = (await watching.next()).value!;
      expect(third).toMatchObject({ run: { status: 'PAUSED', statusMessage: 'for lunch' }, stages: [] });
      expect(third.run!.revision).toBeGreaterThan(first.run!.revision);
      await watcher.store.moveStage(watcher.caller, other.id, 'cancel', SILENT);
      expect((await watching.next()).value).toMatchObject({ stages: [{ id: other.id, status: 'CANCELLED' }] });
      await watching.return();
    }));

  it('M5: a change between the snapshot and the first wait is sent without a poll', async () => {
    let meanwhile: (() => Promise<void>) | undefined;
    const store = wrappedStore(on.store, {
      readRunChanges: async (...args) => {
        const read = await on.store.readRunChanges(...args);
        const change = meanwhile;
        meanwhile = undefined;
        await change?.();
        return read;
      },
    });
    await withApp(
      { pollMs: NEVER },
      async (watcher) => {
        const run = await watcher.makeRun({ status: 'RUNNING' });
        meanwhile = async () => void (await watcher.move(run, 'pause'));
        const watching = watcher.watch(run);
        expect((await watching.next()).value).toMatchObject({ run: { status: 'RUNNING' } });
        expect((await watching.next()).value).toMatchObject({ run: { status: 'PAUSED' } });
        await watching.return();
      },
      store,
    );
  });

  it('M5: rows that the store returns twice are recognised by their revision', async () => {
    let from: Horizon | undefined;
    const store = wrappedStore(on.store, {
      // Always reads from the first horizon, as if a transaction stayed open.
      readRunChanges: async (namespace, id, since, allStages) => {
        const read = await on.store.readRunChanges(namespace, id, from ?? since, allStages);
        from ??= read?.horizon;
        return read;
      },
    });
    await withApp(
      // A look at a poll could read the rows before a change, and the progress after it.
      { pollMs: NEVER },
      async (watcher) => {
        const run = await watcher.makeRun({ status: 'RUNNING' });
        const stages = await Promise.all([1n, 2n, 3n].map((number) => watcher.stage(run, { number })));
        const watching = watcher.watch(run);
        expect((await watching.next()).value!.stages).toHaveLength(3);
        for (const phase of ['a', 'b']) {
          for (const { id } of stages) {
            await watcher.store.updateStage(watcher.namespace, id, { phase });
            const { stages: told } = (await watching.next()).value!;
            expect(told).toMatchObject([{ id, phase }]);
            expect(told).toHaveLength(1);
          }
        }
        await watching.return();
      },
      store,
    );
  });

  it('M5: watchers of a run share the looks at it, however many they are', async () => {
    let reads = 0;
    const store = wrappedStore(on.store, {
      readRunChanges: (...args) => {
        reads += 1;
        return on.store.readRunChanges(...args);
      },
    });
    const shared = async (watcher: Watcher) => {
      const run = await watcher.makeRun({ status: 'RUNNING' });
      const stage = await watcher.stage(run, { number: 1n });
      const watchings = Array.from({ length: 50 }, () => watcher.watch(run));
      await Promise.all(watchings.map((each) => each.next()));
      expect(reads).toBe(50);
      for (const phase of ['a', 'b', 'c']) {
        reads = 0;
        const told = watchings.map((each) => each.next());
        await watcher.store.updateStage(watcher.namespace, stage.id, { phase });
        for (const each of told) expect((await each).value!.stages).toMatchObject([{ id: stage.id, phase }]);
        // A hint that arrives during a look causes another one.
        expect(reads).toBeLessThanOrEqual(2);
      }
      await Promise.all(watchings.map((each) => each.return()));
    };
    await withApp({ pollMs: NEVER }, shared, store);
  });

  it('M5: reads of a watched run do not overlap, so that each sees what those before it saw', async () => {
    let [open, most] = [0, 0];
    const store = wrappedStore(on.store, {
      readRunChanges: async (...args) => {
        open += 1;
        most = Math.max(most, open);
        const read = await on.store.readRunChanges(...args);
        open -= 1;
        return read;
      },
    });
    const joining = async (watcher: Watcher) => {
      const run = await watcher.makeRun({ status: 'RUNNING' });
      const stage = await watcher.stage(run, { number: 1n });
      const untilTold = async (each: AsyncGenerator<RunShown>) => {
        for await (const { stages } of each) if (stages.some(({ phase }) => phase === '19')) return;
      };
      const told: Promise<void>[] = [];
      for (let i = 0; i < 20; i += 1) {
        told.push(untilTold(watcher.watch(run)));
        await watcher.store.updateStage(watcher.namespace, stage.id, { phase: `${i}` });
      }
      await Promise.all(told);
    };
    await withApp({ pollMs: NEVER }, joining, store);
    expect(most).toBe(1);
  });

  it('M5: a watcher that takes nothing for long gets the latest values, and the shared looks go on', () =>
    withApp({ pollMs: NEVER }, async (watcher) => {
      const run = await watcher.makeRun({ status: 'RUNNING' });
      const stage = await watcher.stage(run, { number: 1n });
      const [slow, quick] = [watcher.watch(run), watcher.watch(run)];
      for (const each of [slow, quick]) await each.next();
      for (let i = 0; i < 40; i += 1) {
        const told = quick.next();
        await watcher.store.updateStage(watcher.namespace, stage.id, { phase: `${i}` });
        expect((await told).value!.stages).toMatchObject([{ phase: `${i}` }]);
      }
      let phase: string | undefined;
      while (phase !== '39') phase = (await slow.next()).value!.stages.at(-1)?.phase ?? phase;
      const told = slow.next();
      await watcher.store.updateStage(watcher.namespace, stage.id, { phase: 'later' });
      expect((await told).value!.stages).toMatchObject([{ phase: 'later' }]);
      for (const each of [slow, quick]) await each.return();
    }));

  it('M5: a run that becomes stale only by time is sent with its old revision', () =>
    withApp({}, async (watcher) => {
      const fields = { status: 'RUNNING', heartbeatTimeoutMs: 3000, failWhenStale: true } as const;
      const run = await watcher.makeRun(fields);
      const watching = watcher.watch(run);
      expect((await watching.next()).value).toMatchObject({ run: { stale: false } });
      expect((await watching.next()).value).toMatchObject({ run: { stale: true, revision: run.revision } });
      await watcher.store.heartbeatRun(watcher.namespace, run.id);
      expect((await watching.next()).value).toMatchObject({ run: { stale: false } });
      await watching.return();
    }));

  it('M5: steps of the main trajectory appear in the run, although they do not change its row', () =>
    withApp({}, async (watcher) => {
      const run = await watcher.makeRunWith(['a']);
      const watching = watcher.watch(run);
      expect((await watching.next()).value).toMatchObject({ run: { mainTrajectory: { nextStepNumber: 1n } } });
      await watcher.appendWords(await watcher.get(run.mainTrajectory!.id), ['b', 'c']);
      const shown = (await watching.next()).value!;
      expect(shown.run).toMatchObject({ revision: run.revision, mainTrajectory: { nextStepNumber: 3n } });
      expect(shown.progress).toBeUndefined();
      await watching.return();
    }));

  it('M5: until_terminal ends after the end was sent, also if the run had ended before', () =>
    withApp({}, async (watcher) => {
      const run = await watcher.makeRun({ status: 'RUNNING' });
      const watching = watcher.watch(run, { untilTerminal: true });
      await watching.next();
      await watcher.move(run, 'complete', { message: 'done' });
      const rest = await all(watching);
      expect(rest.at(-1)).toMatchObject({ run: { status: 'COMPLETED' }, progress: { percent: 100 }, caughtUp: true });
      expect(await all(watcher.watch(run, { untilTerminal: true }))).toHaveLength(1);
    }));

  it('RD3: a snapshot larger than a message is sent in several, complete with the last', () =>
    withApp({}, async (watcher) => {
      const run = await watcher.makeRun({ status: 'RUNNING' });
      const statusMessage = 'x'.repeat(4096);
      const metrics = new Map(Array.from({ length: LIMITS.metrics }, (_, i) => [`${i}`.padEnd(128, 'k'), i]));
      for (let number = 0n; number < 40n; number += 1n) {
        const { id } = await watcher.stage(run, { number });
        await watcher.store.updateStage(watcher.namespace, id, { statusMessage, metrics });
      }
      const watching = watcher.watch(run);
      const parts: RunShown[] = [];
      do parts.push((await watching.next()).value!);
      while (!parts.at(-1)!.caughtUp);
      await watching.return();
      expect(parts.length).toBeGreaterThan(2);
      expect(parts.map((part) => [part.run !== undefined, part.progress !== undefined])).toEqual(
        parts.map((_, i) => [i === 0, i === parts.length - 1]),
      );
      const numbers = parts.flatMap(({ stages }) => stages.map(({ number }) => number));
      expect(new Set(numbers).size).toBe(40);
      // Each of these stages has about 40 KB.
      for (const { stages } of parts) expect(stages.length).toBeLessThan(20);
    }));

  it('M5, B4: deletion of the run ends the watch, also without a notification', () =>
    withApp({}, async (watcher) => {
      const missing = watcher.watch({ id: '00000000-0000-4000-8000-000000000000' });
      expect((await refusalOf(all(missing))).reason).toBe('RUN_NOT_FOUND');
      const [here, elsewhere] = [await watcher.makeRun(), await watcher.makeRun()];
      const watching = [watcher.watch(here), watcher.watch(elsewhere)];
      for (const each of watching) await each.next();
      const rests = watching.map((each) => refusalOf(all(each)));
      await servicesOf(watcher.app, watcher.caller).deleteRun({ runId: here.id });
      await watcher.store.deleteRun(watcher.namespace, elsewhere.id, 'REFUSE');
      expect(await rests[0]).toMatchObject({ reason: 'RUN_DELETED', metadata: { run_id: here.id } });
      expect(await rests[1]).toMatchObject({ reason: 'RUN_DELETED', metadata: { run_id: elsewhere.id } });
    }));

  it('A2: a drain ends watchers with SERVER_DRAINING, and a cancelled call just ends', () =>
    withApp({ pollMs: NEVER }, async (watcher) => {
      const run = await watcher.makeRun();
      const gone = new AbortController();
      const [left, drained] = [watcher.watch(run, {}, gone.signal), watcher.watch(run)];
      await Promise.all([left.next(), drained.next()]);
      const [leaving, draining] = [left.next(), refusalOf(drained.next())];
      gone.abort();
      expect((await leaving).done).toBe(true);
      watcher.app.drain.begin();
      expect((await draining).reason).toBe('SERVER_DRAINING');
    }));
});

/** A namespace in which runs are created and watched. */
class Watcher extends RunScene {
  readonly app: App;

  constructor(app: App, store: Store) {
    super(store);
    this.app = app;
  }

  watch({ id: runId }: Pick<Run, 'id'>, fields: Partial<WatchedRunArgs> = {}, signal?: AbortSignal) {
    const args = { runId, allStages: false, untilTerminal: false, ...fields };
    return watching(this.app, () => WatchedRun.open(this.app, this.caller, args), signal);
  }
}
