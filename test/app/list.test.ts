import { create } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import {
  ListTagsRequestSchema,
  ListTrajectoriesRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { PageArgs, PageOf } from '../../src/app/page_token.ts';
import { deleteTrajectory } from '../../src/app/trajectory/delete.ts';
import { getLineage } from '../../src/app/trajectory/get_lineage.ts';
import { getTree } from '../../src/app/trajectory/get_tree.ts';
import { type ListTrajectoriesArgs, listTrajectories } from '../../src/app/trajectory/list.ts';
import { type ListStepsArgs, listSteps } from '../../src/app/trajectory/list_steps.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { toTrajectoryFilter } from '../../src/service/trajectory/requests.ts';
import { tagMethods } from '../../src/service/trajectory/tag.ts';
import { refusalOf } from '../store/scene.ts';
import type { GivenStep } from '../support/given_steps.ts';
import { type AppScene, describeApp, state, step, wordOf } from './on_app.ts';

const FIRST: PageArgs = { pageSize: 0, pageToken: '', binding: '' };

describeApp('lists', (on) => {
  it('FM7: pages hold everything once, newest first, whatever their size', async () => {
    const scene = on.scene();
    const made = [];
    for (let i = 0; i < 7; i += 1) made.push((await scene.create({ name: `${i}` })).id);
    for (const pageSize of [1, 2, 3, 7, 100]) {
      const ids = await collect((page) => list(scene, page), pageSize);
      expect(ids.map(({ id }) => id)).toEqual(made.toReversed());
    }
    const last = await list(scene, { pageSize: 7 });
    expect([last.items.length, last.nextPageToken]).toEqual([7, '']);
  });

  it('page_size 0 means 50, and more than 1,000 means 1,000', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(Array.from({ length: 1001 }, () => 'x'));
    const size = async (pageSize: number) => (await steps(scene, trajectory, { pageSize })).items.length;
    expect([await size(0), await size(1), await size(5000)]).toEqual([50, 1, 1000]);
  });

  it('a page of trajectories ends early where their metadata is large, and still nothing is missing', async () => {
    const scene = on.scene();
    for (let i = 0; i < 6; i += 1) {
      const { id } = await scene.create();
      const metadataJson = JSON.stringify('m'.repeat(300_000));
      await on.store.updateTrajectory(scene.caller.namespace, id, { metadataJson });
    }
    const first = await list(scene, { view: 'FULL' });
    expect(first.items.length).toBe(3);
    expect(await collect((page) => list(scene, { ...page, view: 'FULL' }), 50)).toHaveLength(6);
    expect((await list(scene)).items).toHaveLength(6);
  });

  it('RD4: steps of a lineage by number, reward or time, in pages of any size, NaN and missing rewards last', async () => {
    const scene = on.scene();
    const root = await scene.create();
    await scene.write(root, [
      step(0n, 'a', { reward: 2 }),
      step(1n, 'b', { reward: Number.NaN }),
      step(2n, 'c', { reward: -Infinity }),
    ]);
    const branch = await scene.branch(root, 2n);
    await scene.write(branch, [
      step(3n, 'd'),
      step(4n, 'e', { reward: 2, terminated: true }),
      step(5n, 'f', { reward: 3 }),
    ]);
    const words = async (fields: Partial<ListStepsArgs>, pageSize: number) =>
      (await collect((page) => steps(scene, branch, { ...fields, ...page }), pageSize))
        .map((one) => wordOf(one.step))
        .join('');
    for (const pageSize of [1, 2, 5, 50]) {
      const order = (by: 'NUMBER' | 'REWARD' | 'TIME', descending = false) =>
        ({ order: { by, descending }, view: 'FULL' }) as const;
      expect(await words(order('NUMBER'), pageSize)).toBe('abcdef');
      expect(await words(order('NUMBER', true), pageSize)).toBe('fedcba');
      expect(await words(order('REWARD'), pageSize)).toBe('caefbd');
      expect(await words(order('REWARD', true), pageSize)).toBe('feacdb');
      expect(await words({ ...order('NUMBER'), filter: { minReward: 2 } }, pageSize)).toBe('aef');
      expect(await words({ ...order('NUMBER'), filter: { terminalOnly: true } }, pageSize)).toBe('e');
    }
  });

  it('RD3: a page of steps ends early where they are large, and still nothing is missing', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(Array.from({ length: 9 }, () => 'x'.repeat(200_000)));
    const page = await steps(scene, trajectory, { view: 'FULL' });
    expect(page.items.length).toBeLessThan(5);
    const everything = await collect((next) => steps(scene, trajectory, { ...next, view: 'FULL' }), 50);
    expect(everything.map((one) => one.step.stepNumber)).toEqual(Array.from({ length: 9 }, (_, i) => BigInt(i)));
  });

  it.each(['BASIC', 'FULL'] as const)(
    'RD3: a %s page of small steps with many states and metrics stays below 1 MiB, and still nothing is missing',
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
        const page = await steps(scene, trajectory, { ...next, view });
        pages.push(page.items.length);
        return page;
      }, 1000);
      expect(everything.map((one) => one.step.stepNumber)).toEqual(Array.from({ length: 300 }, (_, i) => BigInt(i)));
      const bytes = 16 * (60 + 64 + 120) + 50 * (100 + 8);
      for (const count of pages) expect(count * bytes).toBeLessThan(LIMITS.messageBytes);
    },
  );

  it('a page token is of one query: any other refuses it', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(['a', 'b', 'c']);
    await scene.create();
    const token = (await steps(scene, trajectory, { pageSize: 1 })).nextPageToken;
    const trajectories = (await list(scene, { pageSize: 1 })).nextPageToken;
    expect(token).not.toBe('');
    expect((await steps(scene, trajectory, { pageSize: 9, pageToken: token })).items).toHaveLength(2);
    const other = await scene.createWith(['a', 'b', 'c']);
    const misuses = [
      () => steps(scene, other, { pageToken: token }),
      () => steps(scene, trajectory, { pageToken: token, binding: 'another query' }),
      () => steps(scene, trajectory, { pageToken: trajectories }),
      () => steps(scene, trajectory, { pageToken: 'nonsense' }),
      () => steps(scene, trajectory, { pageToken: Buffer.from('["a",1]').toString('base64url') }),
      () => list(scene, { pageToken: token }),
      () => list(scene, { pageToken: trajectories, binding: 'another query' }),
    ];
    for (const misuse of misuses) {
      expect(await refusalOf(misuse())).toMatchObject({
        reason: 'INVALID_PAGE_TOKEN',
        violations: [{ field: 'page_token' }],
      });
    }
  });

  it('statuses that no trajectory is ever in find nothing', async () => {
    const scene = on.scene();
    await scene.create();
    const filterOf = (...statuses: Status[]) =>
      toTrajectoryFilter(create(ListTrajectoriesRequestSchema, { statuses })) as ListTrajectoriesArgs['filter'];
    expect((await list(scene, { filter: filterOf(Status.RUNNING, Status.PAUSED) })).items).toHaveLength(1);
    expect(await list(scene, { filter: filterOf(Status.PAUSED) })).toEqual({ items: [], nextPageToken: '' });
  });

  it('a page token that is forged is refused, not handed to the database', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(['a', 'b', 'c']);
    await scene.create();
    const token = (await steps(scene, trajectory, { pageSize: 1 })).nextPageToken;
    const trajectories = (await list(scene, { pageSize: 1 })).nextPageToken;
    const forged = (of: string, ...cursor: string[]) => {
      const [query] = JSON.parse(Buffer.from(of, 'base64url').toString()) as string[];
      return Buffer.from(JSON.stringify([query, ...cursor])).toString('base64url');
    };
    const beyond = `${2n ** 63n}`;
    const forgeries = [
      () => list(scene, { pageSize: 1, pageToken: forged(trajectories) }),
      () => list(scene, { pageSize: 1, pageToken: forged(trajectories, 'a') }),
      () => list(scene, { pageSize: 1, pageToken: forged(trajectories, beyond) }),
      () => steps(scene, trajectory, { pageToken: forged(token, '1', '1', '1') }),
      () => steps(scene, trajectory, { pageToken: forged(token, beyond, '1', '1', '') }),
      () => steps(scene, trajectory, { pageToken: forged(token, '1', beyond, '1', '') }),
      () => steps(scene, trajectory, { pageToken: forged(token, '1', '1', `${2n ** 67n}`, '') }),
      () => steps(scene, trajectory, { pageToken: forged(token, '1', '1', '-1', '') }),
    ];
    for (const forgery of forgeries) expect((await refusalOf(forgery())).reason).toBe('INVALID_PAGE_TOKEN');
  });

  it('B5: tags come by name in order of bytes, page by page', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(['a', 'b']);
    const names = ['B', 'a', 'a-b', 'a.b', 'a/b', 'a0', 'aB', 'a_b', 'ab'];
    for (const name of names.toReversed()) {
      await on.store.setTag(scene.caller.namespace, trajectory.id, name, 1n, undefined);
    }
    const { app, caller } = scene;
    const call = { app, caller, signal: app.call.signal };
    const tags = await collect(async ({ pageSize, pageToken }) => {
      const request = { trajectoryId: trajectory.id, pageSize, pageToken };
      const page = await tagMethods.listTags(create(ListTagsRequestSchema, request), call);
      return { items: page.tags ?? [], nextPageToken: page.nextPageToken ?? '' };
    }, 2);
    expect(tags.map(({ name }) => name)).toEqual(names);
  });
});

describeApp('lineage and tree', (on) => {
  it('B1, B2: name the owners of each stretch, deleted ones too, and show later names', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const middle = await scene.branch(root, 1n);
    await scene.write(middle, [step(2n, 'C'), step(3n, 'D')]);
    const leaf = await scene.branch(middle, 2n);
    // The parent is the owner of the step, whatever trajectory is named.
    const sibling = await scene.branch(leaf, 0n);
    await scene.words(leaf); // puts the lineage into the cache
    await deleteTrajectory(scene.app, scene.caller, { trajectoryId: middle.id, onBranches: 'KEEP_SHARED' });
    await on.store.updateTrajectory(scene.caller.namespace, root.id, { name: 'renamed' });
    const segments = (size: number) =>
      collect((page) => getLineage(scene.app, scene.caller, { trajectoryId: leaf.id, ...page }), size);
    expect(await segments(1)).toEqual(await segments(10));
    expect(await segments(2)).toEqual([
      { trajectoryId: root.id, name: 'renamed', startStepNumber: 0n, endStepNumber: 2n, deleted: false },
      { trajectoryId: middle.id, name: '', startStepNumber: 2n, endStepNumber: 3n, deleted: true },
      { trajectoryId: leaf.id, name: '', startStepNumber: 3n, endStepNumber: 3n, deleted: false },
    ]);
    expect(await scene.words(leaf)).toEqual(['a', 'b', 'C']);
    const tree = await collect((page) => getTree(scene.app, scene.caller, { trajectoryId: leaf.id, ...page }), 1);
    expect(tree.map(({ id, hidden, parent }) => [id, hidden, parent?.id])).toEqual([
      [root.id, false, undefined],
      [middle.id, true, root.id],
      [leaf.id, false, middle.id],
      [sibling.id, false, root.id],
    ]);
    expect((await refusalOf(getTree(scene.app, scene.caller, { trajectoryId: middle.id, ...FIRST }))).reason).toBe(
      'TRAJECTORY_NOT_FOUND',
    );
  });
});

describeApp('creating', (on) => {
  it('W11: the root is step 0, and is checked as any step', async () => {
    const scene = on.scene();
    const field = async (root: GivenStep) => (await refusalOf(scene.create({ root }))).violations[0]?.field;
    expect(await field(step(1n, 'a'))).toBe('root.step_number');
    expect(await field(step(0n, 'a', { infoJson: 'x' }))).toBe('root.info_json');
  });
});

function list(scene: AppScene, fields: Partial<ListTrajectoriesArgs> = {}) {
  return listTrajectories(scene.app, scene.caller, { ...FIRST, filter: {}, view: 'BASIC', ...fields });
}

function steps(scene: AppScene, { id }: { id: string }, fields: Partial<ListStepsArgs> = {}) {
  const order = { by: 'NUMBER', descending: false } as const;
  return listSteps(scene.app, scene.caller, {
    ...FIRST,
    of: { trajectoryId: id },
    filter: {},
    order,
    view: 'BASIC',
    ...fields,
  });
}

/** All items, page by page. */
async function collect<Item>(fetch: (page: PageArgs) => Promise<PageOf<Item>>, pageSize: number): Promise<Item[]> {
  const items: Item[] = [];
  let pageToken = '';
  do {
    const page = await fetch({ pageSize, pageToken, binding: '' });
    if (page.items.length === 0 && page.nextPageToken !== '') throw new Error('an empty page that is not the last');
    items.push(...page.items);
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
  return items;
}
