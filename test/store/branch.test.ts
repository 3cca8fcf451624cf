import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { endBranch, refusalOf } from './scene.ts';

describeStore('branches and lineage', (on) => {
  it('B1: a branch is one row: its parent is the owner of the step, whichever trajectory was named', async () => {
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

  it('O2: a branch starts with the reward sum at its branch point; later sums of parent and branch are independent', async () => {
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

  it('B1: a branch point must be a stored step: below 0, or at the end and beyond, is refused with the end', async () => {
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

  it('B1: a sealed trajectory can be branched, and the branch accepts steps', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    await scene.seal(root, 'FAILED', 'fell');
    const child = await scene.branch(root, 1n);
    expect(child).toMatchObject({ status: 'RUNNING', statusMessage: '', sealTime: undefined });
    await scene.appendWords(child, ['c']);
    expect(await scene.words(child)).toEqual(['a', 'b', 'c']);
  });

  it('B5: a branch can be created at a tag of the source, on an own or an inherited step', async () => {
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
    await scene.append(root, [makeStep(0n, { states: [stateRef(state)] })], { states: [state] });
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

  it('the tree is listed by key, parents before branches, hidden trajectories included, in pages', async () => {
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

  it('O2: steps that the parent appends after the branch point never appear in the branch', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const child = await scene.branch(root, 1n);
    await scene.appendWords(root, ['c', 'd']);
    expect(await scene.words(child)).toEqual(['a', 'b']);
    await scene.appendWords(child, ['C']);
    expect(await scene.words(child)).toEqual(['a', 'b', 'C']);
    expect(await scene.words(root)).toEqual(['a', 'b', 'c', 'd']);
  });

  it('B7: a branch is left out if its source, a step of it, or its run is deleted while it is created', async () => {
    const scene = on.scene();
    const [root, deleted] = [await scene.createWith(['a']), await scene.createWith(['b'])];
    await scene.delete(deleted);
    const sources = [
      deleted,
      { ...root, nextStepNumber: 9n },
      { ...root, runId: randomUUID() },
      { ...root, experimentId: randomUUID() },
      root,
    ];
    const key = { rpc: 'BranchTrajectories', requestId: randomUUID(), requestDigest: 'x' };
    expect(await scene.store.branchTrajectories(scene.caller, sources.map(endBranch), key)).toBe(1);
    const listed = await scene.store.listTrajectories(
      scene.namespace,
      { taskId: 'branches' },
      { limit: 9, after: undefined },
    );
    expect(listed).toMatchObject([{ parent: { id: root.id, branchPoint: 0n }, nextStepNumber: 1n }]);
  });
});
