import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import {
  type ListRunsRequestSchema,
  WatchRunsRequestSchema,
  type WatchRunsResponse,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ListOrder } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { watchRuns } from '../../src/service/run/watch_page.ts';
import { callOf } from '../support/parts_call.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, describeApp, step } from './on_app.ts';

function watch(scene: AppScene, list: MessageInitShape<typeof ListRunsRequestSchema>) {
  const call = callOf(scene.app, scene.caller);
  const messages = watchRuns.messages(create(WatchRunsRequestSchema, { list }), call);
  return {
    async next() {
      const { value } = (await messages.next()) as IteratorResult<WatchRunsResponse, undefined>;
      return { runs: value?.runs.map(({ run }) => run?.name), page: value?.page?.runIds, caughtUp: value?.caughtUp };
    },
    end: () => messages.return(undefined),
  };
}

describeApp('WatchRuns', (on) => {
  it('M5: begins with the page, then sends changed runs, and the ids when their order changes', async () => {
    const app = on.app({ watchMs: 1, progressMs: 3_600_000 });
    const scene = on.scene(app);
    const made = async (name: string) =>
      (await scene.rpc.createRun({ name, mainTrajectory: { root: { reward: 1 } } })).run!;
    const [a, b] = [await made('a'), await made('b')];
    const watching = watch(scene, { order: ListOrder.REWARD });
    expect(await watching.next()).toEqual({ runs: ['b', 'a'], page: [b.id, a.id], caughtUp: true });
    await scene.write({ id: a.mainTrajectoryId }, [step(1n, 'w', { reward: 5 })]);
    expect(await watching.next()).toEqual({ runs: ['a'], page: [a.id, b.id], caughtUp: true });
    await scene.rpc.updateRun({ runId: b.id, updateMask: { paths: ['phase'] }, phase: 'warming up' });
    expect(await watching.next()).toEqual({ runs: ['b'], page: undefined, caughtUp: true });
    const c = await made('c');
    expect(await watching.next()).toEqual({ runs: ['c'], page: [a.id, c.id, b.id], caughtUp: true });
    await scene.rpc.deleteRun({ runId: c.id });
    expect(await watching.next()).toEqual({ runs: [], page: [a.id, b.id], caughtUp: true });
    await watching.end();
    expect(app.changes.listeners).toBe(0);
    await app.close();
  });

  it('M5: sends nothing if only runs of other pages change', async () => {
    let looks = 0;
    const store = wrappedStore(on.store, {
      listRuns: (...args) => {
        looks += 1;
        return on.store.listRuns(...args);
      },
    });
    const app = on.app({ watchMs: 1, progressMs: 3_600_000 }, store);
    const scene = on.scene(app);
    const { run } = await scene.rpc.createRun({ name: 'shown' });
    const watching = watch(scene, { name: 'shown' });
    await watching.next();
    await scene.rpc.createRun({ name: 'other' });
    const next = watching.next();
    const before = looks;
    while (looks < before + 3) await new Promise((resolve) => setImmediate(resolve));
    await scene.rpc.updateRun({ runId: run!.id, updateMask: { paths: ['phase'] }, phase: 'done' });
    expect(await next).toEqual({ runs: ['shown'], page: undefined, caughtUp: true });
    await watching.end();
    await app.close();
  });
});
