import { create } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import {
  WatchTrajectoriesRequestSchema,
  type WatchTrajectoriesResponse,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { watchTrajectories } from '../../src/service/trajectory/watch_page.ts';
import { callOf } from '../support/parts_call.ts';
import { describeApp, step } from './on_app.ts';

describeApp('WatchTrajectories', (on) => {
  it('M5: begins with the page, then sends changed trajectories, and the ids when they change', async () => {
    const app = on.app({ watchMs: 1, progressMs: 3_600_000 });
    const scene = on.scene(app);
    const made = async (name: string) =>
      (await scene.rpc.createTrajectory({ name, root: { reward: 1 } })).trajectory!.id;
    const [a, b] = [await made('a'), await made('b')];
    const request = create(WatchTrajectoriesRequestSchema, { list: { rootsOnly: true } });
    const messages = watchTrajectories.messages(request, callOf(app, scene.caller));
    const next = async () => {
      const { value } = (await messages.next()) as IteratorResult<WatchTrajectoriesResponse, undefined>;
      const names = value?.trajectories.map(({ name, nextStepNumber }) => `${name} ${nextStepNumber}`);
      return { names, page: value?.page?.trajectoryIds, caughtUp: value?.caughtUp };
    };
    expect(await next()).toEqual({ names: ['b 1', 'a 1'], page: [b, a], caughtUp: true });
    await scene.write({ id: a }, [step(1n, 'w')]);
    expect(await next()).toEqual({ names: ['a 2'], page: undefined, caughtUp: true });
    const c = await made('c');
    expect(await next()).toEqual({ names: ['c 1'], page: [c, b, a], caughtUp: true });
    await scene.rpc.deleteTrajectory({ trajectoryId: b });
    expect(await next()).toEqual({ names: [], page: [c, a], caughtUp: true });
    await messages.return(undefined);
    expect(app.changes.listeners).toBe(0);
    await app.close();
  });
});
