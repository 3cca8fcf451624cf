import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { TrajectoryFilter } from '../../src/store/contract/trajectory.ts';
import { newState, newStep, sha256, stateRef, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { refusalOf, type Scene } from './scene.ts';

const ODD = 'e\u0301 \u00e9 🌊 中文 \u202e\u2028 "\\\'\n\t $1 ?1 :a %_ \\u0000';

function list(scene: Scene, filter: TrajectoryFilter = {}, limit = 1000, after?: bigint): Promise<Trajectory[]> {
  return scene.store.listTrajectories(scene.namespace, filter, { limit, after });
}

async function ids(scene: Scene, filter: TrajectoryFilter = {}): Promise<string[]> {
  return (await list(scene, filter)).map(({ id }) => id);
}

describeStore('making and getting trajectories', (on) => {
  it('L1: a new trajectory is RUNNING, empty, unheld, its own root, and what its maker said comes back', async () => {
    const scene = on.scene();
    const labels = new Map([
      ['a', ''],
      ['A', '1'],
      ['__proto__', 'x'],
      ['"quoted.key"', ODD],
    ]);
    const metadataJson = ' {"b": 1,\n "a":1.0, "n": 9007199254740993} ';
    const id = randomUUID();
    const uid = randomUUID();
    const made = await scene.create({ id, uid, name: ODD, taskId: 'T/1', labels, metadataJson });
    expect(made).toMatchObject({
      id,
      uid,
      treeId: id,
      parent: undefined,
      name: ODD,
      taskId: 'T/1',
      metadataJson,
      status: 'RUNNING',
      statusMessage: '',
      writerId: '',
      writerEpoch: 0n,
      nextStepNumber: 0n,
      rewardSum: 0,
      sealTime: undefined,
      hidden: false,
    });
    expect(made.labels).toEqual(labels);
    expect(made.metrics).toEqual(new Map());
    expect(made.ref.tree).toBe(made.ref.key);
    expect(await scene.get(id)).toEqual(made);
  });

  it('times are those of now, and the database gives them', async () => {
    const scene = on.scene();
    const { createTime, updateTime } = await scene.create();
    expect(createTime).toBe(updateTime);
    expect(Math.abs(Number(createTime / 1_000_000n) - Date.now())).toBeLessThan(60_000);
  });

  it('a root step comes in the same transaction, with its state', async () => {
    const scene = on.scene();
    const state = newState('reset');
    const root = newStep(0n, { states: [stateRef(state)], reward: 2, infoJson: '{"seed":1}' });
    const made = await scene.create({ root, states: [state] });
    expect(made).toMatchObject({ nextStepNumber: 1n, rewardSum: 2 });
    const [step] = await scene.steps(made);
    expect(step).toMatchObject({
      owner: { key: made.ref.key, id: made.id },
      step: { stepNumber: 0n, infoJson: '{"seed":1}', writerEpoch: 0n, rewardSum: 2, commitTime: made.createTime },
    });
    expect(step?.step.states).toEqual([stateRef(state)]);
  });

  it('W9: a root that refers to an unknown state makes nothing at all', async () => {
    const scene = on.scene();
    const id = randomUUID();
    const digest = sha256('nowhere');
    const root = newStep(0n, { states: [{ name: 'env', digest, mediaType: '', size: 0 }] });
    expect(await refusalOf(scene.create({ id, root }))).toMatchObject({
      reason: 'STATE_NOT_FOUND',
      metadata: { digest },
    });
    expect(await scene.isThere(id)).toBe(false);
    expect(await scene.create({ id })).toMatchObject({ id });
  });

  it('an id that is taken is refused, and the trajectory that has it stays as it is', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a'], { name: 'first' });
    expect(await refusalOf(scene.create({ id: made.id, name: 'second' }))).toMatchObject({
      reason: 'TRAJECTORY_EXISTS',
      metadata: { trajectory_id: made.id },
    });
    expect(await refusalOf(scene.branch(made, 0n, { id: made.id }))).toMatchObject({ reason: 'TRAJECTORY_EXISTS' });
    expect(await scene.get(made.id)).toEqual(made);
    expect(await ids(scene)).toEqual([made.id]);
  });

  it('of many makers of one id at once one succeeds', async () => {
    const scene = on.scene();
    const id = randomUUID();
    const results = await Promise.allSettled(Array.from({ length: 8 }, (_, i) => scene.create({ id, name: `${i}` })));
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    for (const each of results)
      if (each.status === 'rejected') expect(each.reason).toMatchObject({ reason: 'TRAJECTORY_EXISTS' });
  });

  it('an id that is not there is undefined', async () => {
    expect(await on.store.getTrajectory(on.scene().namespace, randomUUID())).toBeUndefined();
  });

  it('design 5: creation is the first StatusChange, written with it, and names the actor', async () => {
    const scene = on.scene();
    await scene.create();
    expect(await on.sql.rows(`select * from status_changes where namespace = '${scene.namespace}'`)).toMatchObject([
      { old_status: null, new_status: 'RUNNING', actor: 'tester' },
    ]);
  });
});

describeStore('listing trajectories', (on) => {
  it('FM7: newest first, and pages of one make what one page of all makes', async () => {
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

  it('rows made between two pages do not shift the next page', async () => {
    const scene = on.scene();
    const made: string[] = [];
    for (let i = 0; i < 4; i += 1) made.unshift((await scene.create()).id);
    const first = await list(scene, {}, 2);
    await scene.create();
    const second = await list(scene, {}, 2, first[1]?.ref.key);
    expect([...first, ...second].map(({ id }) => id)).toEqual(made);
  });

  it('trajectories made in the same millisecond keep the order in which they were made', async () => {
    const scene = on.scene();
    const made: Trajectory[] = [];
    for (let i = 0; i < 30; i += 1) made.unshift(await scene.create());
    expect(await ids(scene)).toEqual(made.map(({ id }) => id));
    for (const [i, { ref }] of made.entries())
      if (i > 0) expect(ref.key < (made[i - 1] as Trajectory).ref.key).toBe(true);
  });

  it('filters: task, name, labels and status, exactly and by case, and all that are set must hold', async () => {
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

  it('label keys and values are taken as they are, whatever JSON, SQL or paths would make of them', async () => {
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

  it('a label is its whole key and its whole value, not a part of another that looks like it', async () => {
    const scene = on.scene();
    const { id } = await scene.create({ labels: new Map([['k', 'v']]) });
    await scene.create({ labels: new Map([['x"k', 'v']]) });
    await scene.create({ labels: new Map([['x', '"k":"v"']]) });
    await scene.create({ labels: new Map([['x', '","k":"v']]) });
    await scene.create({ labels: new Map([['x":"y","k', 'v']]) });
    await scene.create({ labels: new Map([['k', 'v"']]) });
    expect(await ids(scene, { labels: new Map([['k', 'v']]) })).toEqual([id]);
  });

  it('a label is found by its pair whatever signs it is made of', async () => {
    const scene = on.scene();
    const text = (minLength: number) => fc.string({ unit: fc.constantFrom(...'",:{}\\\n a'), minLength, maxLength: 3 });
    const maps = fc.sample(fc.array(fc.tuple(text(1), text(0)), { minLength: 1, maxLength: 3 }), {
      numRuns: 300,
      seed: 7,
    });
    // Keys and values that end in what stands between the pairs of JSON text.
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

  it('filters: made at or after, and made before', async () => {
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

describeStore('updating trajectories', (on) => {
  it('FM7: what is given changes, what is not stays; labels are replaced, metrics merge by key', async () => {
    const scene = on.scene();
    const made = await scene.create({ name: 'n', labels: new Map([['a', '1']]), metadataJson: '{}' });
    const update = (changes: Parameters<typeof scene.store.updateTrajectory>[2]) =>
      scene.store.updateTrajectory(scene.namespace, made.id, changes);
    expect((await update({ labels: new Map([['b', '2']]) })).labels).toEqual(new Map([['b', '2']]));
    expect(await update({ name: ODD })).toMatchObject({ name: ODD, metadataJson: '{}' });
    await update({
      metrics: new Map([
        ['x', 1],
        ['y', Number.NaN],
        ['z', -0],
      ]),
    });
    const merged = await update({
      metrics: new Map([
        ['x', Infinity],
        ['X', -Infinity],
        ['w', 0.1],
      ]),
    });
    expect(merged.metrics).toEqual(
      new Map([
        ['x', Infinity],
        ['y', Number.NaN],
        ['z', -0],
        ['X', -Infinity],
        ['w', 0.1],
      ]),
    );
    expect(await update({ name: '', labels: new Map(), metadataJson: '' })).toMatchObject({
      name: '',
      metadataJson: '',
    });
    const now = await scene.get(made.id);
    expect(now.labels.size).toBe(0);
    expect(now.metrics).toEqual(merged.metrics);
    expect(now.updateTime > made.updateTime).toBe(true);
    expect(now.createTime).toBe(made.createTime);
  });

  it('metrics set at once by many are all there', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const keys = Array.from({ length: 20 }, (_, i) => `m${i}`);
    await Promise.all(
      keys.map((key, i) => scene.store.updateTrajectory(scene.namespace, made.id, { metrics: new Map([[key, i]]) })),
    );
    expect((await scene.get(made.id)).metrics).toEqual(new Map(keys.map((key, i) => [key, i])));
  });

  it('256 metrics are taken, one more is refused and changes nothing', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const many = new Map(Array.from({ length: 256 }, (_, i) => [`m${i}`, i]));
    await scene.store.updateTrajectory(scene.namespace, made.id, { metrics: many });
    await scene.store.updateTrajectory(scene.namespace, made.id, { metrics: new Map([['m0', 7]]) });
    const over = scene.store.updateTrajectory(scene.namespace, made.id, { name: 'x', metrics: new Map([['one', 1]]) });
    expect(await refusalOf(over)).toMatchObject({ reason: 'INVALID_REQUEST', violations: [{ field: 'metrics' }] });
    expect(await scene.get(made.id)).toMatchObject({ name: '' });
    expect((await scene.get(made.id)).metrics.size).toBe(256);
  });

  it('a sealed trajectory takes it too; one that is not there does not', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await scene.seal(made);
    expect(await scene.store.updateTrajectory(scene.namespace, made.id, { name: 'late' })).toMatchObject({
      name: 'late',
      status: 'COMPLETED',
    });
    const nobody = scene.store.updateTrajectory(scene.namespace, randomUUID(), { name: 'x' });
    expect((await refusalOf(nobody)).reason).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('an update does not undo what is appended at the same time', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await Promise.all([
      ...Array.from({ length: 10 }, (_, i) => scene.store.updateTrajectory(scene.namespace, made.id, { name: `${i}` })),
      (async () => {
        for (let n = 0n; n < 10n; n += 1n) await scene.append(made, [wordStep(n, 'a', { reward: 1 })]);
      })(),
    ]);
    expect(await scene.get(made.id)).toMatchObject({ nextStepNumber: 10n, rewardSum: 10 });
  });
});

describeStore('branches and lineage', (on) => {
  it('B1: a branch is one row: the parent is the owner of the step, whichever trajectory was named', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c'], { taskId: 'T', labels: new Map([['x', '1']]), name: 'root' });
    const child = await scene.branch(root, 1n, { name: 'child', labels: new Map([['y', '2']]), metadataJson: '[]' });
    expect(child).toMatchObject({
      treeId: root.id,
      parent: { id: root.id, key: root.ref.key, branchPoint: 1n },
      taskId: 'T',
      name: 'child',
      metadataJson: '[]',
      nextStepNumber: 2n,
      status: 'RUNNING',
      writerEpoch: 0n,
    });
    expect(child.labels).toEqual(new Map([['y', '2']]));
    expect(child.ref.tree).toBe(root.ref.tree);
    await scene.appendWords(child, ['C', 'D']);
    for (const [n, parent] of [
      [0n, root],
      [1n, root],
      [2n, child],
      [3n, child],
    ] as const)
      expect((await scene.branch(child, n)).parent).toMatchObject({ id: parent.id, branchPoint: n });
  });

  it('O2: a branch begins with the sum of rewards at its branch point, and both go on apart', async () => {
    const scene = on.scene();
    const root = await scene.create();
    await scene.append(
      root,
      [1, 2, 4, 8].map((reward, i) => wordStep(BigInt(i), 'r', { reward })),
    );
    const child = await scene.branch(root, 1n);
    expect(child.rewardSum).toBe(3);
    await scene.append(child, [wordStep(2n, 'c', { reward: 100 })]);
    await scene.append(root, [wordStep(4n, 'r', { reward: 16 })]);
    expect((await scene.get(child.id)).rewardSum).toBe(103);
    expect((await scene.get(root.id)).rewardSum).toBe(31);
    expect((await scene.steps(child)).map(({ step }) => step.rewardSum)).toEqual([1, 3, 103]);
    expect(await scene.words(child)).toEqual(['r', 'r', 'c']);
    expect(await scene.words(root)).toEqual(['r', 'r', 'r', 'r', 'r']);
  });

  it('B1: a branch point is a stored step: below 0 and from the end on is refused with the end, at both ends is fine', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    for (const n of [3n, 4n, 2n ** 53n, 2n ** 63n - 1n])
      expect(await refusalOf(scene.branch(root, n))).toMatchObject({
        reason: 'BRANCH_POINT_BEYOND_END',
        metadata: { step_number: `${n}`, next_step_number: '3' },
      });
    expect((await scene.branch(root, 0n)).nextStepNumber).toBe(1n);
    expect((await scene.branch(root, 2n)).nextStepNumber).toBe(3n);
    const empty = await scene.create();
    expect((await refusalOf(scene.branch(empty, 0n))).reason).toBe('BRANCH_POINT_BEYOND_END');
    expect((await refusalOf(scene.branch({ id: randomUUID() }, 0n))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('B1: a sealed trajectory can be branched, and the branch goes on', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    await scene.seal(root, 'FAILED', 'fell');
    const child = await scene.branch(root, 1n);
    expect(child).toMatchObject({ status: 'RUNNING', statusMessage: '', sealTime: undefined });
    await scene.appendWords(child, ['c']);
    expect(await scene.words(child)).toEqual(['a', 'b', 'c']);
  });

  it('B5: a branch can be made at a tag of the source, of its own or of inherited steps', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const child = await scene.branch(root, 1n);
    await scene.store.setTag(scene.namespace, child.id, 'best', 0n, undefined);
    expect(await scene.branch(child, 'best')).toMatchObject({ parent: { id: root.id, branchPoint: 0n } });
    expect(await refusalOf(scene.branch(child, 'Best'))).toMatchObject({ reason: 'TAG_NOT_FOUND' });
    expect(await refusalOf(scene.branch(root, 'best'))).toMatchObject({ reason: 'TAG_NOT_FOUND' });
  });

  it('a branch writes one row of trajectories, its StatusChange, and nothing else', async () => {
    const scene = on.scene();
    const state = newState('s');
    const root = await scene.create();
    await scene.append(root, [newStep(0n, { states: [stateRef(state)] })], { states: [state] });
    const count = async (table: string) =>
      Number((await on.sql.rows(`select count(*) as n from ${table} where namespace = '${scene.namespace}'`))[0]?.n);
    const before = await Promise.all((await on.sql.tables()).map(count));
    await scene.branch(root, 0n);
    const after = await Promise.all((await on.sql.tables()).map(count));
    const grown = (await on.sql.tables()).filter((_, i) => before[i] !== after[i]);
    expect(grown.sort()).toEqual(['status_changes', 'trajectories']);
  });

  it('B1: the lineage runs from the root to the trajectory itself, at any depth', async () => {
    const scene = on.scene();
    let last = await scene.createWith(['0'], { name: '0' });
    const chain = [
      { key: last.ref.key, branchPoint: undefined as bigint | undefined, id: last.id, name: '0', hidden: false },
    ];
    for (let depth = 1; depth <= 60; depth += 1) {
      const branchPoint = BigInt(depth - 1);
      last = await scene.branch(last, branchPoint, { name: `${depth}` });
      chain.push({ key: last.ref.key, branchPoint, id: last.id, name: `${depth}`, hidden: false });
      await scene.appendWords(last, [`${depth}`]);
    }
    expect(await scene.store.getLineage(scene.namespace, last.ref)).toEqual(chain);
    expect(await scene.words(last)).toEqual(chain.map(({ name }) => name));
    const [first] = chain;
    expect(await scene.store.getLineage(scene.namespace, { tree: last.ref.tree, key: first?.key ?? 0n })).toEqual([
      first,
    ]);
  });

  it('the tree is listed by key, a parent before its branches, hidden ones included, page by page', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const one = await scene.branch(root, 0n);
    await scene.create();
    const two = await scene.branch(root, 1n);
    const three = await scene.branch(one, 0n);
    await scene.delete(root, 'KEEP_SHARED');
    const tree = await scene.store.listTree(scene.namespace, root.ref.tree, { limit: 100, after: undefined });
    expect(tree.map(({ id, hidden }) => [id, hidden])).toEqual([
      [root.id, true],
      [one.id, false],
      [two.id, false],
      [three.id, false],
    ]);
    const paged: string[] = [];
    for (let after: bigint | undefined; ; ) {
      const [row] = await scene.store.listTree(scene.namespace, root.ref.tree, { limit: 1, after });
      if (row === undefined) break;
      paged.push(row.id);
      after = row.ref.key;
    }
    expect(paged).toEqual(tree.map(({ id }) => id));
  });

  it('O2: what the parent appends behind the branch point never shows in the branch', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const child = await scene.branch(root, 1n);
    await scene.appendWords(root, ['c', 'd']);
    expect(await scene.words(child)).toEqual(['a', 'b']);
    await scene.appendWords(child, ['C']);
    expect(await scene.words(child)).toEqual(['a', 'b', 'C']);
    expect(await scene.words(root)).toEqual(['a', 'b', 'c', 'd']);
  });
});
