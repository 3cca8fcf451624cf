import type { MessageInitShape } from '@bufbuild/protobuf';
import { expect, it, vi } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type ListStepsRequestSchema,
  type ListTrajectoriesRequestSchema,
  OnBranches,
  StepOrder,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { refusalOf } from '../store/scene.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, describeApp, state, step } from './on_app.ts';
import { collect } from './services.ts';

describeApp('lists', (on) => {
  it('FM7: pages contain every item once, newest first, whatever their size', async () => {
    const scene = on.scene();
    const made = [];
    for (let i = 0; i < 7; i += 1) made.push((await scene.create({ name: `${i}` })).id);
    for (const pageSize of [1, 2, 3, 7, 100]) {
      const ids = await collect((page) => trajectories(scene, page), pageSize);
      expect(ids.map(({ id }) => id)).toEqual(made.toReversed());
    }
    const last = await list(scene, { pageSize: 7 });
    expect([last.trajectories.length, last.nextPageToken]).toEqual([7, '']);
  });

  it('A5: a page of many steps waits for a slot after its last read, before it is encoded', async () => {
    const slots: (() => void)[] = [];
    const calls: string[] = [];
    const take = () => {
      calls.push('slot');
      return new Promise<void>((resolve) => slots.push(resolve));
    };
    const store = wrappedStore(on.store, {
      slots: { take },
      getTrajectory: (...args) => {
        calls.push('read');
        return on.store.getTrajectory(...args);
      },
    });
    const app = on.app({}, store);
    const scene = on.scene(app);
    const made = await scene.create();
    await scene.write(
      made,
      Array.from({ length: 40 }, (_, i) => step(BigInt(i), `${i}`)),
    );
    const few = await steps(scene, made, { pageSize: 31 });
    expect([few.steps.length, calls.includes('slot')]).toEqual([31, false]);
    const many = steps(scene, made, { pageSize: 32 });
    await vi.waitUntil(() => slots.length === 1);
    expect(calls.at(-1)).toBe('slot');
    slots[0]!();
    expect((await many).steps.length).toBe(32);
    await app.close();
  });

  it('RD4: steps by a declared metric, in pages of any size; other orders take no metric_key', async () => {
    const scene = on.scene();
    const made = await scene.create({ scoredMetrics: ['score', 'other'] });
    expect(made.scoredMetrics).toEqual(['score', 'other']);
    const values = [3, Number.NaN, -Infinity, undefined, 7, 3, Infinity, 0];
    const metricsOf = (score: number | undefined) => new Map(score === undefined ? [] : [['score', score]]);
    await scene.write(
      made,
      values.map((score, i) => step(BigInt(i), `${i}`, { metrics: metricsOf(score) })),
    );
    for (const pageSize of [1, 3, 10]) {
      const by = (descending: boolean) =>
        collect(
          (page) => stepsOf(scene, made, { ...page, order: StepOrder.METRIC, metricKey: 'score', descending }),
          pageSize,
        );
      const ascending = [2, 7, 0, 5, 4, 6];
      const numbers = (found: Awaited<ReturnType<typeof by>>) => found.map(({ step }) => Number(step?.stepNumber));
      expect(numbers(await by(false))).toEqual(ascending);
      expect(numbers(await by(true))).toEqual(ascending.toReversed());
    }
    const none = { order: StepOrder.METRIC, metricKey: 'undeclared' };
    expect((await steps(scene, made, none)).steps).toEqual([]);
    for (const wrong of [
      { order: StepOrder.METRIC },
      { order: StepOrder.REWARD, metricKey: 'score' },
      { metricKey: 'score' },
    ]) {
      expect(await refusalOf(steps(scene, made, wrong))).toMatchObject({
        reason: 'INVALID_REQUEST',
        violations: [{ field: 'metric_key' }],
      });
    }
  });

  it('page_size 0 means 50, and more than 1,000 means 1,000', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(Array.from({ length: 1001 }, () => 'x'));
    const size = async (pageSize: number) => (await steps(scene, trajectory, { pageSize })).steps.length;
    expect([await size(0), await size(1), await size(5000)]).toEqual([50, 1, 1000]);
  });

  it('a page of trajectories ends early if their metadata is large, and no item is lost', async () => {
    const scene = on.scene();
    for (let i = 0; i < 6; i += 1) {
      const { id } = await scene.create();
      const metadataJson = JSON.stringify('m'.repeat(300_000));
      await on.store.updateTrajectory(scene.caller.namespace, id, { metadataJson });
    }
    const first = await list(scene, { view: View.FULL });
    expect(first.trajectories.length).toBe(3);
    expect(await collect((page) => trajectories(scene, { ...page, view: View.FULL }), 50)).toHaveLength(6);
    expect((await list(scene)).trajectories).toHaveLength(6);
  });

  it('RD3: a page of steps ends early if they are large, and no item is lost', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(Array.from({ length: 9 }, () => 'x'.repeat(200_000)));
    const page = await steps(scene, trajectory, { view: View.FULL });
    expect(page.steps.length).toBeLessThan(5);
    const everything = await collect((next) => stepsOf(scene, trajectory, { ...next, view: View.FULL }), 50);
    expect(everything.map((one) => one.step?.stepNumber)).toEqual(Array.from({ length: 9 }, (_, i) => BigInt(i)));
  });

  it.each([View.BASIC, View.FULL])(
    'RD3: a page of small steps with many states and metrics stays below 1 MiB in view %i, and no item is lost',
    async (view) => {
      const scene = on.scene();
      const trajectory = await scene.create();
      const states = Array.from({ length: 16 }, (_, i) =>
        state('s', { name: `n${i}`.padEnd(60, 'x'), mediaType: 'm'.repeat(120) }),
      );
      const metrics = new Map(Array.from({ length: 50 }, (_, i) => [`${i}`.padEnd(100, 'k'), i]));
      await scene.write(
        trajectory,
        Array.from({ length: 300 }, (_, i) => step(BigInt(i), 'w', { states, metrics })),
      );
      const pages: number[] = [];
      const everything = await collect(async (next) => {
        const page = await stepsOf(scene, trajectory, { ...next, view });
        pages.push(page[0].length);
        return page;
      }, 1000);
      expect(everything.map((one) => one.step?.stepNumber)).toEqual(Array.from({ length: 300 }, (_, i) => BigInt(i)));
      const bytes = 16 * (60 + 64 + 120) + 50 * (100 + 8);
      for (const count of pages) expect(count * bytes).toBeLessThan(LIMITS.messageBytes);
    },
  );

  it('a page token belongs to one query: any other query refuses it', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(['a', 'b', 'c']);
    await scene.create();
    const token = (await steps(scene, trajectory, { pageSize: 1 })).nextPageToken;
    const ofTrajectories = (await list(scene, { pageSize: 1 })).nextPageToken;
    expect(token).not.toBe('');
    expect((await steps(scene, trajectory, { pageSize: 9, pageToken: token })).steps).toHaveLength(2);
    const other = await scene.createWith(['a', 'b', 'c']);
    const misuses = [
      () => steps(scene, other, { pageToken: token }),
      () => steps(scene, trajectory, { pageToken: token, descending: true }),
      () => steps(scene, trajectory, { pageToken: ofTrajectories }),
      () => steps(scene, trajectory, { pageToken: 'nonsense' }),
      () => list(scene, { pageToken: token }),
      () => list(scene, { pageToken: ofTrajectories, name: 'another query' }),
    ];
    for (const misuse of misuses) {
      expect(await refusalOf(misuse())).toMatchObject({
        reason: 'INVALID_PAGE_TOKEN',
        violations: [{ field: 'page_token' }],
      });
    }
  });

  it('a filter by statuses that trajectories never have finds nothing', async () => {
    const scene = on.scene();
    await scene.create();
    const found = await list(scene, { statuses: [Status.RUNNING, Status.PAUSED] });
    expect(found.trajectories).toHaveLength(1);
    expect(await list(scene, { statuses: [Status.PAUSED] })).toMatchObject({ trajectories: [], nextPageToken: '' });
  });
});

describeApp('lineage and tree', (on) => {
  it('B1, B2: return the owner of each range, including deleted ones, with their current names', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const middle = await scene.branch(root, 1n);
    await scene.write(middle, [step(2n, 'C'), step(3n, 'D')]);
    const leaf = await scene.branch(middle, 2n);
    // The parent is the owner of the step, whichever trajectory is named.
    const sibling = await scene.branch(leaf, 0n);
    await scene.words(leaf); // puts the lineage into the cache
    await scene.rpc.deleteTrajectory({ trajectoryId: middle.id, onBranches: OnBranches.KEEP_SHARED });
    await on.store.updateTrajectory(scene.caller.namespace, root.id, { name: 'renamed' });
    const segments = (size: number) =>
      collect(async (page) => {
        const found = await scene.rpc.getLineage({ trajectoryId: leaf.id, ...page });
        return [found.segments, found.nextPageToken];
      }, size);
    expect(await segments(1)).toEqual(await segments(10));
    expect(await segments(2)).toMatchObject([
      { trajectoryId: root.id, name: 'renamed', startStepNumber: 0n, endStepNumber: 2n, deleted: false },
      { trajectoryId: middle.id, name: '', startStepNumber: 2n, endStepNumber: 3n, deleted: true },
      { trajectoryId: leaf.id, name: '', startStepNumber: 3n, endStepNumber: 3n, deleted: false },
    ]);
    expect(await scene.words(leaf)).toEqual(['a', 'b', 'C']);
    const tree = await collect(async (page) => {
      const found = await scene.rpc.getTree({ trajectoryId: leaf.id, ...page });
      return [found.nodes, found.nextPageToken];
    }, 1);
    expect(tree.map(({ trajectory, deleted }) => [trajectory?.id, deleted, trajectory?.parentId])).toEqual([
      [root.id, false, ''],
      [middle.id, true, root.id],
      [leaf.id, false, middle.id],
      [sibling.id, false, root.id],
    ]);
    expect((await refusalOf(scene.rpc.getTree({ trajectoryId: middle.id }))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });
});

type Fields = Omit<MessageInitShape<typeof ListTrajectoriesRequestSchema>, '$typeName'>;
type StepFields = Omit<MessageInitShape<typeof ListStepsRequestSchema>, '$typeName'>;

function list(scene: AppScene, fields: Fields = {}) {
  return scene.rpc.listTrajectories(fields);
}

async function trajectories(scene: AppScene, fields: Fields) {
  const page = await list(scene, fields);
  return [page.trajectories, page.nextPageToken] as const;
}

function steps(scene: AppScene, { id }: { id: string }, fields: StepFields = {}) {
  return scene.rpc.listSteps({ trajectoryId: id, ...fields });
}

async function stepsOf(scene: AppScene, trajectory: { id: string }, fields: StepFields) {
  const page = await steps(scene, trajectory, fields);
  return [page.steps, page.nextPageToken] as const;
}
