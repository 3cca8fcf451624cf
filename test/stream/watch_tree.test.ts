import { expect, it } from 'vitest';
import type { Gain } from '../../src/domain/gain.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { type TreeNews, WatchedTrees, type WatchedTreesArgs } from '../../src/stream/trajectories/watch.ts';
import { type AppScene, describeApp, step } from '../service/on_app.ts';
import { refusalOf } from '../store/scene.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type Shown, watching } from './watching.ts';

type TreeShown = Shown<TreeNews>;
type Watching = AsyncGenerator<TreeShown, void, undefined>;

/** What a client of a watch knows. */
class Mirror {
  readonly rows = new Map<
    string,
    Pick<Trajectory, 'nextStepNumber' | 'rewardSum' | 'status' | 'name' | 'hidden'> & Partial<Gain>
  >();
  readonly messages: TreeShown[] = [];
  readonly #watching: Watching;

  constructor(watching: Watching) {
    this.#watching = watching;
  }

  async until(done: (mirror: Mirror) => boolean): Promise<void> {
    do await this.#next();
    while (!done(this));
  }

  async #next(): Promise<void> {
    const { value } = await this.#watching.next();
    if (value === undefined) throw new Error('the watch has ended');
    this.messages.push(value);
    for (const row of value.rows) this.rows.set(row.id, { ...row, ...value.gains.get(row.ref.key) });
    for (const id of value.removed) this.rows.delete(id);
  }

  end(): Promise<unknown> {
    return this.#watching.return();
  }
}

const steps = (from: number, to: number, reward: number) =>
  Array.from({ length: to - from }, (_, i) => step(BigInt(from + i), 'w', { reward }));

const isCaughtUp = ({ messages }: Mirror) => messages.at(-1)?.caughtUp === true;

describeApp('a watched tree', (on) => {
  async function watched(
    use: (scene: AppScene, watch: (of: WatchedTreesArgs) => Mirror) => Promise<void>,
    store = on.store,
  ) {
    const app = on.app({ watchMs: 1, pollMs: 20, progressMs: 3_600_000 }, store);
    const scene = on.scene(app);
    try {
      await use(scene, (of) => new Mirror(watching(app, () => WatchedTrees.open(app, scene.caller, of))));
      expect(app.changes.listeners, 'nobody listens any more').toBe(0);
    } finally {
      await app.close();
    }
  }

  async function branched(scene: AppScene) {
    const root = await scene.create({ name: 'root' });
    await scene.write(root, steps(0, 4, 1));
    const branch = await scene.branch(root, 1n);
    return { root, branch };
  }

  it('M5: begins with all trajectories of the tree, then sends each change, new branches and gains', () =>
    watched(async (scene, watch) => {
      const { root, branch } = await branched(scene);
      await scene.createWith(['of another tree']);
      const mirror = watch({ treeOf: branch.id });
      await mirror.until(isCaughtUp);
      expect([...mirror.rows.keys()]).toEqual([root.id, branch.id]);
      await scene.write(branch, steps(2, 6, 3));
      await mirror.until(({ rows }) => rows.get(branch.id)?.nextStepNumber === 6n);
      expect(mirror.rows.get(branch.id)).toMatchObject({ gain: 2, gainSteps: 2n, rewardSum: 14 });
      const other = await scene.branch(branch, 3n);
      await mirror.until(({ rows }) => rows.has(other.id));
      // The branch does not change, but is compared with more steps of its parent.
      await scene.write(root, steps(4, 5, 4));
      await mirror.until(({ rows }) => rows.get(branch.id)?.gainSteps === 3n);
      expect(mirror.rows.get(branch.id)?.gain).toBe(1);
      await scene.rpc.updateTrajectory({ trajectoryId: root.id, updateMask: { paths: ['name'] }, name: 'renamed' });
      await mirror.until(({ rows }) => rows.get(root.id)?.name === 'renamed');
      await mirror.end();
    }));

  it('M5, B5: sends tags that are set, moved and deleted, and each change once', () =>
    watched(async (scene, watch) => {
      const { root, branch } = await branched(scene);
      await scene.rpc.setTag({ trajectoryId: branch.id, name: 'good', stepNumber: 1n });
      const mirror = watch({ treeOf: root.id });
      await mirror.until(isCaughtUp);
      const tags = () =>
        mirror.messages
          .at(-1)
          ?.tags.get(branch.ref.key)
          ?.map(({ name, stepNumber }) => [name, stepNumber]);
      expect(mirror.messages[0]?.tags.get(branch.ref.key)).toMatchObject([{ name: 'good', stepNumber: 1n }]);
      await scene.rpc.setTag({ trajectoryId: branch.id, name: 'good', stepNumber: 0n });
      await mirror.until(() => tags()?.[0]?.[1] === 0n);
      await scene.rpc.setTag({ trajectoryId: branch.id, name: 'best', stepNumber: 1n });
      await mirror.until(() => tags()?.length === 2);
      expect(tags()).toEqual([
        ['best', 1n],
        ['good', 0n],
      ]);
      await scene.rpc.deleteTag({ trajectoryId: branch.id, name: 'good' });
      await mirror.until(() => tags()?.length === 1);
      expect(mirror.messages.filter(({ rows }) => rows.length > 0)).toHaveLength(4);
      await mirror.end();
    }));

  it('M5, B2: sends what is removed and what is kept for branches, and ends when nothing is left', () =>
    watched(async (scene, watch) => {
      const { root, branch } = await branched(scene);
      const leaf = await scene.branch(root, 2n);
      const mirror = watch({ treeOf: root.id });
      await mirror.until(isCaughtUp);
      await scene.app.store.deleteTrajectory(scene.caller.namespace, leaf.id, 'REFUSE');
      await mirror.until(({ rows }) => !rows.has(leaf.id));
      await scene.app.store.deleteTrajectory(scene.caller.namespace, root.id, 'KEEP_SHARED');
      await mirror.until(({ rows }) => rows.get(root.id)?.hidden === true);
      await scene.app.store.deleteTrajectory(scene.caller.namespace, branch.id, 'REFUSE');
      expect((await refusalOf(mirror.until(() => false))).reason).toBe('TRAJECTORY_DELETED');
      expect(mirror.rows.size).toBe(0);
    }));

  it('M5: of chosen trajectories of several trees, sends only these', () =>
    watched(async (scene, watch) => {
      const [one, two] = [await branched(scene), await branched(scene)];
      const mirror = watch({ ids: [one.branch.id, two.root.id] });
      await mirror.until(isCaughtUp);
      await scene.write(one.root, steps(4, 5, 1));
      await scene.write(two.root, steps(4, 5, 1));
      await scene.write(one.branch, steps(2, 3, 1));
      const ends = ({ rows }: Mirror) => [one.branch, two.root].map(({ id }) => rows.get(id)?.nextStepNumber);
      await mirror.until((seen) => ends(seen).join() === '3,5');
      expect(new Set(mirror.rows.keys())).toEqual(new Set([one.branch.id, two.root.id]));
      await mirror.end();
    }));

  it('M5: changes whose hints are lost are found by polls', () =>
    watched(
      async (scene, watch) => {
        const { root, branch } = await branched(scene);
        const mirror = watch({ treeOf: root.id });
        await mirror.until(isCaughtUp);
        await scene.write(branch, steps(2, 3, 5));
        const later = await scene.branch(root, 0n);
        await mirror.until(({ rows }) => rows.has(later.id) && rows.get(branch.id)?.nextStepNumber === 3n);
        await mirror.end();
      },
      wrappedStore(on.store, { onChange: () => () => undefined }),
    ));

  it('M5: appends to other trees are looked up once', () => {
    const asked: bigint[] = [];
    const store = wrappedStore(on.store, {
      listTree: (namespace, tree, page, keys) => {
        asked.push(...(keys ?? []));
        return on.store.listTree(namespace, tree, page, keys);
      },
    });
    return watched(async (scene, watch) => {
      const { root, branch } = await branched(scene);
      const other = await scene.create();
      const mirror = watch({ treeOf: root.id });
      await mirror.until(isCaughtUp);
      for (let i = 0; i < 5; i += 1) {
        await scene.write(other, steps(i, i + 1, 1));
        await scene.write(branch, steps(2 + i, 3 + i, 1));
        await mirror.until(({ rows }) => rows.get(branch.id)?.nextStepNumber === BigInt(3 + i));
      }
      expect(asked.filter((key) => key === other.ref.key).length).toBe(1);
      await mirror.end();
    }, store);
  });

  it('M5: an unknown trajectory is refused', () =>
    watched(async (_, watch) => {
      const mirror = watch({ ids: [crypto.randomUUID()] });
      expect((await refusalOf(mirror.until(isCaughtUp))).reason).toBe('TRAJECTORY_NOT_FOUND');
    }));
});
