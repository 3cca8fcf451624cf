import { randomUUID } from 'node:crypto';
import { StatementSync } from 'node:sqlite';
import { expect, it, vi } from 'vitest';
import { trajectoryHint } from '../../src/domain/change.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { OnBranches } from '../../src/store/contract/trajectory.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { describeStore, describeStoreOn, type OnStore } from './on_store.ts';
import { refusalOf, type Scene } from './scene.ts';
import { countRows } from './sql.ts';
import { sqliteTextsByThread, textsOf } from './statement_count.ts';

const STATES = Array.from({ length: 20 }, (_, i) => newState(`state ${i}`));
const PAGE = { limit: 1000, after: undefined };

/** The statements of the writing connection, in order. */
async function writesOf(on: OnStore, work: () => Promise<unknown>): Promise<string[]> {
  return on.engine === 'sqlite' ? (await sqliteTextsByThread(work)).serving : textsOf(work);
}

/** Deletes a trajectory, with a caller that cancels after the first transaction. */
async function deleteAndLeave(scene: Scene, { id, ref }: Trajectory, onBranches: OnBranches): Promise<void> {
  const caller = new AbortController();
  const left = new Error('the caller left');
  const stop = scene.store.onChange((hint) => {
    if (hint === trajectoryHint(ref.key)) caller.abort(left);
  });
  const call = scene.store.within({ signal: caller.signal });
  await expect(call.deleteTrajectory(scene.namespace, id, onBranches)).rejects.toBe(left);
  stop();
}

/** A trajectory whose steps each have one of a few states. */
async function createLarge(scene: Scene, steps: number): Promise<Trajectory> {
  const made = await scene.create();
  for (let from = 0; from < steps; from += 500) {
    const numbers = Array.from({ length: Math.min(500, steps - from) }, (_, i) => from + i);
    await scene.append(
      made,
      numbers.map((i) => makeStep(BigInt(i), { states: [stateRef(STATES[i % STATES.length]!)] })),
      { states: STATES },
    );
  }
  return scene.get(made.id);
}

describeStore('a deletion in several transactions', (on) => {
  const reason = (call: Promise<unknown>) => refusalOf(call).then((error) => error.reason);
  const rows = (scene: Scene) => countRows(on.sql, scene.namespace);
  const purgeAll = async (limit = 100) => {
    while (await on.store.purgeDeleted(limit));
  };

  it('B2: a trajectory that is being purged is found by no call, is absent from its tree, and keeps its id until its rows are deleted', async () => {
    const scene = on.scene();
    const { store, namespace, caller } = scene;
    const root = await scene.createWith(['a', 'b']);
    const request = { rpc: 'BranchTrajectory', requestId: randomUUID(), requestDigest: 'x' };
    const ids = { id: randomUUID(), uid: randomUUID() };
    const child = await scene.branch(root, 1n, ids, request);
    await scene.appendWords(child, ['c']);
    await store.setTag(namespace, child.id, 'best', 2n, undefined);
    const epoch = await scene.open(child);
    await deleteAndLeave(scene, child, 'REFUSE');
    const { id } = child;
    const state = { name: 'env', digest: STATES[0]!.digest, mediaType: '', data: STATES[0]!.data };
    const target = { trajectoryId: id, uid: undefined, writerEpoch: epoch };
    const callsOnDeleted = [
      scene.append(child, [wordStep(3n, 'd')], { writerEpoch: epoch }),
      scene.append(child, [wordStep(2n, 'c')], { writerEpoch: epoch }),
      scene.open(child),
      scene.branch(child, 2n),
      scene.branch(child, 0n),
      store.attachState(caller, { ...target, stepNumber: 2n, ...state }),
      store.updateTrajectory(namespace, id, { name: 'n' }),
      store.setTag(namespace, id, 'other', 0n, undefined),
      store.getTag(namespace, id, 'best'),
      store.listTags(namespace, id, PAGE),
      store.deleteTag(namespace, id, 'best'),
      store.listStatusChanges(namespace, { noun: 'TRAJECTORY', id }, PAGE, true),
      store.deleteTrajectory(namespace, id, 'CASCADE'),
      scene.branch(root, 1n, ids, request),
    ];
    expect(await Promise.all(callsOnDeleted.map(reason))).toEqual(callsOnDeleted.map(() => 'TRAJECTORY_NOT_FOUND'));
    expect(await scene.isThere(id)).toBe(false);
    expect((await store.listTree(namespace, root.ref.tree, PAGE)).map((each) => each.id)).toEqual([root.id]);
    expect((await store.listTrajectories(namespace, {}, PAGE)).map((each) => each.id)).toEqual([root.id]);
    expect(await store.listTrajectories(namespace, { parentId: id }, PAGE)).toEqual([]);
    expect(await store.getOwners(namespace, root.ref.tree, [child.ref.key])).toEqual(new Map());
    expect(await reason(scene.create({ id }))).toBe('TRAJECTORY_EXISTS');
    expect(await reason(scene.branch(root, 0n, { id }))).toBe('TRAJECTORY_EXISTS');
    expect(await rows(scene)).toMatchObject({ trajectories: 2, steps: 3 });
    await purgeAll();
    expect(await rows(scene)).toMatchObject({ trajectories: 1, steps: 2, tags: 0 });
    expect((await scene.branch(root, 0n, { id })).uid).not.toBe(child.uid);
  });

  it('B2: a branch that is being purged does not count as a branch, and its parent can be deleted meanwhile', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const child = await scene.branch(root, 1n);
    await deleteAndLeave(scene, child, 'REFUSE');
    expect(await scene.delete(root, 'REFUSE')).toMatchObject({ purged: 1n, keptShared: false, keys: [root.ref.key] });
    expect(await rows(scene)).toMatchObject({ trajectories: 0, steps: 0, status_changes: 0 });
  });

  it('B2: a CASCADE continues without its caller and after a restart, including branches that were not yet marked', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    for (let i = 0; i < 3; i += 1) await Promise.all(Array.from({ length: 100 }, () => scene.branch(root, 1n)));
    const [some] = await scene.store.listTrajectories(scene.namespace, { parentId: root.id }, { ...PAGE, limit: 1 });
    const leaf = await scene.branch(some!, 0n);
    await deleteAndLeave(scene, root, 'CASCADE');
    const left = await scene.store.listTrajectories(scene.namespace, {}, PAGE);
    // Otherwise the test shows nothing: some must be marked, and some not.
    expect(left.length).toBeGreaterThan(0);
    expect(left.length).toBeLessThan(300);
    for (const each of left.slice(0, 3)) expect(await scene.words(each)).toHaveLength(each.id === leaf.id ? 1 : 2);
    expect(await reason(scene.branch(left[0]!, 0n))).toBe('TRAJECTORY_NOT_FOUND');
    await on.reopen();
    await purgeAll();
    expect(await rows(scene)).toMatchObject({ trajectories: 0, steps: 0, status_changes: 0 });
  });

  it('B2: a trim continues without its caller and after a restart', async () => {
    const scene = on.scene();
    const root = await createLarge(scene, 600);
    const child = await scene.branch(root, 150n);
    await on.store.setTag(scene.namespace, root.id, 'best', 500n, undefined);
    await deleteAndLeave(scene, root, 'KEEP_SHARED');
    expect(await rows(scene)).toMatchObject({ steps: 600, tags: 1 });
    await on.reopen();
    await purgeAll();
    expect(await rows(scene)).toMatchObject({ trajectories: 2, steps: 151, state_refs: 151, tags: 0 });
    const here = { ...(await on.store.getTrajectory(scene.namespace, child.id))! };
    const [owner] = await on.store.listTree(scene.namespace, root.ref.tree, PAGE);
    expect(owner).toMatchObject({ id: root.id, hidden: true, nextStepNumber: 151n });
    expect(here.nextStepNumber).toBe(151n);
  });

  it('B2: hidden ancestors without remaining branches are purged by a deletion whose caller cancelled', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const middle = await scene.branch(root, 1n);
    const leaf = await scene.branch(middle, 0n);
    const other = await scene.branch(root, 0n);
    await scene.delete(root, 'KEEP_SHARED');
    await scene.delete(middle);
    await deleteAndLeave(scene, leaf, 'REFUSE');
    await purgeAll();
    expect(await rows(scene)).toMatchObject({ trajectories: 2, steps: 1 });
    expect(await scene.words(other)).toEqual(['a']);
    await deleteAndLeave(scene, other, 'REFUSE');
    await purgeAll();
    expect(await rows(scene)).toMatchObject({ trajectories: 0, steps: 0 });
  });

  it('B2: one transaction removes a bounded number of steps, references and tags', async () => {
    const scene = on.scene();
    const made = await createLarge(scene, 500);
    // Many references to a step.
    const crowded = Array.from({ length: 16 }, (_, i) => stateRef(STATES[i]!, `s${i}`));
    const tags = Array.from({ length: 250 }, (_, i) => ({ name: `t${i}`, stepNumber: 559n }));
    for (let i = 500n; i < 560n; i += 1n)
      await scene.append(made, [makeStep(i, { states: crowded })], { states: STATES, tags: i === 559n ? tags : [] });
    await deleteAndLeave(scene, made, 'REFUSE');
    let before = await rows(scene);
    let transactions = 0;
    for (let more = true; more; transactions += 1) {
      more = await on.store.purgeDeleted(100);
      const now = await rows(scene);
      for (const table of ['steps', 'tags']) expect(before[table]! - now[table]!).toBeLessThanOrEqual(100);
      expect(before.state_refs! - now.state_refs!).toBeLessThanOrEqual(100 + crowded.length);
      // A step is deleted with its references.
      expect(now.state_refs).toBe(now.steps! > 500 ? 500 + (now.steps! - 500) * crowded.length : now.steps);
      before = now;
    }
    expect(transactions).toBeGreaterThan(15);
    expect(before).toMatchObject({ trajectories: 0, steps: 0, state_refs: 0, tags: 0 });
  });

  it('B2: a delete of many steps, or of many branches, takes many transactions; small branches share one', async () => {
    const scene = on.scene();
    const large = await createLarge(scene, 2000);
    const commits = async (work: () => Promise<unknown>) =>
      (await writesOf(on, work)).filter((text) => text === 'commit').length;
    expect(await commits(() => scene.delete(large))).toBeGreaterThanOrEqual(8);
    const root = await scene.createWith(['a']);
    for (let i = 0; i < 6; i += 1) await Promise.all(Array.from({ length: 50 }, () => scene.branch(root, 0n)));
    const cascade = await commits(() => scene.delete(root, 'CASCADE'));
    expect(cascade).toBeGreaterThanOrEqual(4);
    expect(cascade).toBeLessThan(20);
  });

  it('W7, S2: a transaction of a delete changes states last', async () => {
    const scene = on.scene();
    const made = await createLarge(scene, 600);
    const texts = await writesOf(on, () => scene.delete(made));
    const transactions = texts
      .join(';;')
      .split('commit')
      .map((text) => text.split(';;'));
    const changing = transactions.filter((each) => each.some((text) => /^update .*"states"/.test(text)));
    expect(changing.length).toBeGreaterThanOrEqual(3);
    for (const each of changing) {
      const first = each.findIndex((text) => /(?:from|update) (?:"anabranch"\.)?"states"/.test(text));
      const after = each.slice(first).filter((text) => text !== '');
      expect(after.filter((text) => !/"states"/.test(text))).toEqual([]);
    }
  });

  it('W7, S2: appends that share states with a trajectory being deleted, and other appends, end before the delete', async () => {
    const scene = on.scene();
    const large = await createLarge(scene, 3000);
    const [sharing, other] = [await scene.createWith(['a']), await scene.createWith(['a'])];
    const ended: string[] = [];
    const begun: Promise<unknown>[] = [];
    const note = (name: string, work: Promise<unknown>) => {
      begun.push(work.then(() => ended.push(name)));
    };
    const stop = scene.store.onChange((hint) => {
      if (hint !== trajectoryHint(large.ref.key) || begun.length > 0) return;
      const states = STATES.map((state, i) => stateRef(state, `s${i}`)).slice(0, 16);
      note('sharing', scene.append(sharing, [makeStep(1n, { states })]));
      note('other', scene.append(other, [wordStep(1n, 'b')]));
    });
    await scene.delete(large).then(() => ended.push('delete'));
    stop();
    await Promise.all(begun);
    expect(ended.at(-1)).toBe('delete');
    expect(ended).toHaveLength(3);
    expect(await scene.steps(sharing)).toHaveLength(2);
  });

  it('S2: a state that only deleted steps referred to is collected; one that a later append named is not', async () => {
    const scene = on.scene();
    const [shared, own] = [newState(randomUUID()), newState(randomUUID())];
    const made = await scene.create();
    await scene.append(made, [makeStep(0n, { states: [stateRef(shared, 'a'), stateRef(own, 'b')] })], {
      states: [shared, own],
    });
    const other = await scene.create();
    await scene.append(other, [makeStep(0n, { states: [stateRef(shared)] })]);
    await scene.delete(made);
    while ((await on.store.collectStates(0, 100)) > 0);
    const kept = await on.store.findStates(scene.namespace, [shared.digest, own.digest], false);
    expect(kept.map(({ digest }) => digest)).toEqual([shared.digest]);
  });
});

describeStoreOn(['sqlite'], 'a deletion beside the serving thread', (on) => {
  it('A5: yields to the event loop after each transaction', async () => {
    const scene = on.scene();
    const large = await createLarge(scene, 2000);
    const root = await scene.createWith(['a']);
    for (let i = 0; i < 6; i += 1) await Promise.all(Array.from({ length: 50 }, () => scene.branch(root, 0n)));
    let iterations = 0;
    let over = false;
    const tick = () => {
      iterations += 1;
      if (!over) setImmediate(tick);
    };
    setImmediate(tick);
    let commits: number[] = [];
    const run = StatementSync.prototype.run;
    const spy = vi.spyOn(StatementSync.prototype, 'run').mockImplementation(function (this: StatementSync, ...values) {
      if (this.sourceSQL === 'commit') commits.push(iterations);
      return run.apply(this, values as Parameters<typeof run>);
    });
    try {
      for (const [trajectory, least] of [
        [large, 8],
        [root, 4],
      ] as const) {
        commits = [];
        await scene.delete(trajectory, 'CASCADE');
        expect(commits.length).toBeGreaterThanOrEqual(least);
        expect(new Set(commits).size).toBe(commits.length);
      }
    } finally {
      spy.mockRestore();
      over = true;
    }
  });
});
