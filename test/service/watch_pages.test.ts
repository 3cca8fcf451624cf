import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import type { ListRunsRequestSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import {
  WatchRequestSchema,
  type WatchResponse,
  type WatchSubjectSchema,
} from '../../gen/es/anabranch/v1/server_service_pb.js';
import { ListOrder } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { watch } from '../../src/service/server/watch.ts';
import { callOf } from '../support/parts_call.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, describeApp, step } from './on_app.ts';

function watchPage({ app, caller }: AppScene, page: MessageInitShape<typeof WatchSubjectSchema>) {
  const messages = watch.messages(create(WatchRequestSchema, { subjects: { page } }), callOf(app, caller));
  return {
    async next(): Promise<WatchResponse> {
      const { value } = await messages.next();
      expect(value).toMatchObject({ name: 'page', caughtUp: true });
      return value;
    },
    end: () => messages.return(undefined),
  };
}

describeApp('a watched page of runs', (on) => {
  function watchRuns(scene: AppScene, list: MessageInitShape<typeof ListRunsRequestSchema>) {
    const watching = watchPage(scene, { runs: list });
    return {
      async next() {
        const { runs } = await watching.next();
        return { runs: runs?.runs.map(({ run }) => run?.name), page: runs?.page?.runIds };
      },
      end: watching.end,
    };
  }

  it('M5: begins with the page, then sends changed runs, and the ids when their order changes', async () => {
    const app = on.app({ watchMs: 1, progressMs: 3_600_000 });
    const scene = on.scene(app);
    const made = async (name: string) =>
      (await scene.rpc.createRun({ name, mainTrajectory: { root: { reward: 1 } } })).run!;
    const [a, b] = [await made('a'), await made('b')];
    const watching = watchRuns(scene, { order: ListOrder.REWARD });
    expect(await watching.next()).toEqual({ runs: ['b', 'a'], page: [b.id, a.id] });
    await scene.write({ id: a.mainTrajectoryId }, [step(1n, 'w', { reward: 5 })]);
    expect(await watching.next()).toEqual({ runs: ['a'], page: [a.id, b.id] });
    await scene.rpc.updateRun({ runId: b.id, updateMask: { paths: ['phase'] }, phase: 'warming up' });
    expect(await watching.next()).toEqual({ runs: ['b'], page: undefined });
    const c = await made('c');
    expect(await watching.next()).toEqual({ runs: ['c'], page: [a.id, c.id, b.id] });
    await scene.rpc.deleteRun({ runId: c.id });
    expect(await watching.next()).toEqual({ runs: [], page: [a.id, b.id] });
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
    const watching = watchRuns(scene, { name: 'shown' });
    await watching.next();
    await scene.rpc.createRun({ name: 'other' });
    const next = watching.next();
    const before = looks;
    while (looks < before + 3) await new Promise((resolve) => setImmediate(resolve));
    await scene.rpc.updateRun({ runId: run!.id, updateMask: { paths: ['phase'] }, phase: 'done' });
    expect(await next).toEqual({ runs: ['shown'], page: undefined });
    await watching.end();
    await app.close();
  });
});

describeApp('a watched page of trajectories', (on) => {
  it('M5: begins with the page, then sends changed trajectories, and the ids when they change', async () => {
    const app = on.app({ watchMs: 1, progressMs: 3_600_000 });
    const scene = on.scene(app);
    const made = async (name: string) =>
      (await scene.rpc.createTrajectory({ name, root: { reward: 1 } })).trajectory!.id;
    const [a, b] = [await made('a'), await made('b')];
    const watching = watchPage(scene, { trajectories: { rootsOnly: true } });
    const next = async () => {
      const { trajectories } = await watching.next();
      const names = trajectories?.trajectories.map(({ name, nextStepNumber }) => `${name} ${nextStepNumber}`);
      return { names, page: trajectories?.page?.trajectoryIds };
    };
    expect(await next()).toEqual({ names: ['b 1', 'a 1'], page: [b, a] });
    await scene.write({ id: a }, [step(1n, 'w')]);
    expect(await next()).toEqual({ names: ['a 2'], page: undefined });
    const c = await made('c');
    expect(await next()).toEqual({ names: ['c 1'], page: [c, b, a] });
    await scene.rpc.deleteTrajectory({ trajectoryId: b });
    expect(await next()).toEqual({ names: [], page: [c, a] });
    await watching.end();
    expect(app.changes.listeners).toBe(0);
    await app.close();
  });
});
