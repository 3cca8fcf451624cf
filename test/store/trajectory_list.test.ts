import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { TrajectoryFilter } from '../../src/store/contract/trajectory.ts';
import { describeStore } from './on_store.ts';
import type { Scene } from './scene.ts';

const ODD = 'e\u0301 \u00e9 🌊 中文 \u202e\u2028 "\\\'\n\t $1 ?1 :a %_ \\u0000';

function list(scene: Scene, filter: TrajectoryFilter = {}, limit = 1000, after?: bigint): Promise<Trajectory[]> {
  return scene.store.listTrajectories(scene.namespace, filter, { limit, after });
}

async function ids(scene: Scene, filter: TrajectoryFilter = {}): Promise<string[]> {
  return (await list(scene, filter)).map(({ id }) => id);
}

describeStore('listing trajectories', (on) => {
  it('FM7: newest first, and pages of one together equal one page of all', async () => {
    const scene = on.scene();
    const made: string[] = [];
    for (let i = 0; i < 7; i += 1) made.unshift((await scene.create()).id);
    expect(await ids(scene)).toEqual(made);
    const paged: string[] = [];
    for (let after: bigint | undefined; ; ) {
      const [one, more] = await list(scene, {}, 1, after);
      expect(more).toBeUndefined();
      if (one === undefined) break;
      paged.push(one.id);
      after = one.ref.key;
    }
    expect(paged).toEqual(made);
  });

  it('rows created between two pages do not shift the next page', async () => {
    const scene = on.scene();
    const made: string[] = [];
    for (let i = 0; i < 4; i += 1) made.unshift((await scene.create()).id);
    const first = await list(scene, {}, 2);
    await scene.create();
    const second = await list(scene, {}, 2, first[1]?.ref.key);
    expect([...first, ...second].map(({ id }) => id)).toEqual(made);
  });

  it('trajectories created in the same millisecond keep their creation order', async () => {
    const scene = on.scene();
    const made: Trajectory[] = [];
    for (let i = 0; i < 30; i += 1) made.unshift(await scene.create());
    expect(await ids(scene)).toEqual(made.map(({ id }) => id));
    for (const [i, { ref }] of made.entries())
      if (i > 0) expect(ref.key < (made[i - 1] as Trajectory).ref.key).toBe(true);
  });

  it('filters: task, name, labels and status, exact and case-sensitive, combined with AND', async () => {
    const scene = on.scene();
    const a = await scene.create({ taskId: 'T', name: 'N', labels: new Map([['k', 'v']]) });
    const b = await scene.create({ taskId: 't', name: 'n', labels: new Map([['K', 'v']]) });
    const c = await scene.create({
      taskId: 'T',
      name: 'n%',
      labels: new Map([
        ['k', 'v'],
        ['x', ''],
      ]),
    });
    await scene.seal(b, 'FAILED');
    expect(await ids(scene, { taskId: 'T' })).toEqual([c.id, a.id]);
    expect(await ids(scene, { taskId: 't' })).toEqual([b.id]);
    expect(await ids(scene, { name: 'n' })).toEqual([b.id]);
    expect(await ids(scene, { name: 'n%' })).toEqual([c.id]);
    expect(await ids(scene, { labels: new Map([['k', 'v']]) })).toEqual([c.id, a.id]);
    expect(await ids(scene, { labels: new Map([['K', 'v']]) })).toEqual([b.id]);
    expect(await ids(scene, { labels: new Map([['k', 'V']]) })).toEqual([]);
    expect(await ids(scene, { labels: new Map([['x', '']]) })).toEqual([c.id]);
    const both = new Map([
      ['k', 'v'],
      ['x', ''],
    ]);
    expect(await ids(scene, { labels: both })).toEqual([c.id]);
    expect(await ids(scene, { statuses: ['FAILED'] })).toEqual([b.id]);
    expect(await ids(scene, { statuses: ['FAILED', 'RUNNING'] })).toEqual([c.id, b.id, a.id]);
    expect(await ids(scene, { statuses: ['COMPLETED'] })).toEqual([]);
    expect(await ids(scene, { taskId: 'T', labels: new Map([['x', '']]) })).toEqual([c.id]);
    expect(await ids(scene, { taskId: 't', name: 'N' })).toEqual([]);
  });

  it('label keys and values are compared literally, whatever they mean in JSON, SQL or paths', async () => {
    const scene = on.scene();
    const odd = ['a.b', 'a"b', "a'b", 'a\\b', '$', '$.a', '', '[0]', '%', ODD, 'a b', '*', '"', '#-1'];
    const made = new Map<string, string>();
    for (const text of odd) {
      const { id } = await scene.create({ labels: new Map([[text === '' ? 'empty' : text, text]]) });
      made.set(text, id);
    }
    for (const text of odd)
      expect(await ids(scene, { labels: new Map([[text === '' ? 'empty' : text, text]]) })).toEqual([made.get(text)]);
    expect(await ids(scene, { labels: new Map([['b', 'a.b']]) })).toEqual([]);
  });

  it('a label matches by its whole key and whole value, never by a part', async () => {
    const scene = on.scene();
    const { id } = await scene.create({ labels: new Map([['k', 'v']]) });
    await scene.create({ labels: new Map([['x"k', 'v']]) });
    await scene.create({ labels: new Map([['x', '"k":"v"']]) });
    await scene.create({ labels: new Map([['x', '","k":"v']]) });
    await scene.create({ labels: new Map([['x":"y","k', 'v']]) });
    await scene.create({ labels: new Map([['k', 'v"']]) });
    expect(await ids(scene, { labels: new Map([['k', 'v']]) })).toEqual([id]);
  });

  it('a label matches whatever characters it consists of', async () => {
    const scene = on.scene();
    const text = (minLength: number) => fc.string({ unit: fc.constantFrom(...'",:{}\\\n a'), minLength, maxLength: 3 });
    const maps = fc.sample(fc.array(fc.tuple(text(1), text(0)), { minLength: 1, maxLength: 3 }), {
      numRuns: 300,
      seed: 7,
    });
    // Keys and values that end in characters that separate pairs in JSON text.
    maps.push(
      [
        ['b,', ':'],
        ['c', 'd'],
      ],
      [[':', ',']],
    );
    const made = await Promise.all(
      maps.map(async (pairs) => ({ labels: new Map(pairs), id: (await scene.create({ labels: new Map(pairs) })).id })),
    );
    for (const [key, value] of maps.slice(-150).map((pairs) => pairs[0] as [string, string])) {
      const expected = made.filter(({ labels }) => labels.get(key) === value).map(({ id }) => id);
      expect((await ids(scene, { labels: new Map([[key, value]]) })).sort()).toEqual(expected.sort());
    }
  });

  it('filters: parent, branch point, tree and roots', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const other = await scene.create();
    const one = await scene.branch(root, 1n);
    await scene.appendWords(one, ['d']);
    const two = await scene.branch(one, 2n);
    const three = await scene.branch(two, 0n);
    expect(await ids(scene, { parentId: root.id })).toEqual([three.id, one.id]);
    expect(await ids(scene, { parentId: root.id, branchPoint: 0n })).toEqual([three.id]);
    expect(await ids(scene, { parentId: root.id, branchPoint: 2n })).toEqual([]);
    expect(await ids(scene, { parentId: one.id })).toEqual([two.id]);
    expect(await ids(scene, { parentId: randomUUID() })).toEqual([]);
    expect(await ids(scene, { treeId: root.id })).toEqual([three.id, two.id, one.id, root.id]);
    expect(await ids(scene, { treeId: one.id })).toEqual([]);
    expect(await ids(scene, { treeId: randomUUID() })).toEqual([]);
    expect(await ids(scene, { rootsOnly: true })).toEqual([other.id, root.id]);
    expect(await ids(scene, { rootsOnly: true, treeId: root.id })).toEqual([root.id]);
  });

  it('filters: created at or after, and created before', async () => {
    const scene = on.scene();
    const a = await scene.create();
    const b = await scene.create();
    const { createTime } = await scene.get(b.id);
    expect(a.createTime < createTime).toBe(true);
    expect(await ids(scene, { createTimeFrom: createTime })).toEqual([b.id]);
    expect(await ids(scene, { createTimeTo: createTime })).toEqual([a.id]);
    expect(await ids(scene, { createTimeFrom: a.createTime, createTimeTo: createTime })).toEqual([a.id]);
    expect(await ids(scene, { createTimeFrom: createTime + 1n })).toEqual([]);
    expect(await ids(scene, { createTimeTo: createTime + 1n })).toEqual([b.id, a.id]);
    expect(await ids(scene, { createTimeFrom: -62_135_596_800_000_000_000n })).toEqual([b.id, a.id]);
    expect(await ids(scene, { createTimeTo: 253_402_300_799_999_999_999n })).toEqual([b.id, a.id]);
  });
});
