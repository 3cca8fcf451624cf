import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { putState, refusalOf, type Scene } from './scene.ts';
import { statementsOf } from './statement_count.ts';

describeStore('tags', (on) => {
  const set = (scene: Scene, of: { id: string }, name: string, step: bigint, expected?: bigint) =>
    scene.store.setTag(scene.namespace, of.id, name, step, expected);
  const get = (scene: Scene, of: { id: string }, name: string) => scene.store.getTag(scene.namespace, of.id, name);
  const reason = (call: Promise<unknown>) => refusalOf(call).then((error) => error.reason);

  it('B5: a tag names an own or an inherited step, and can be moved', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const child = await scene.branch(root, 1n);
    await scene.appendWords(child, ['d']);
    for (const step of [0n, 1n, 2n])
      expect(await set(scene, child, 'best', step)).toMatchObject({
        trajectoryId: child.id,
        name: 'best',
        stepNumber: step,
      });
    const tag = await get(scene, child, 'best');
    expect(tag.stepNumber).toBe(2n);
    expect(Math.abs(Number(tag.updateTime / 1_000_000n) - Date.now())).toBeLessThan(60_000);
    expect(await reason(get(scene, root, 'best'))).toBe('TAG_NOT_FOUND');
  });

  it('B5: a step that is not stored cannot be tagged', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const child = await scene.branch(root, 1n);
    expect(await reason(set(scene, child, 't', 2n))).toBe('STEP_NOT_FOUND');
    expect(await reason(set(scene, root, 't', 3n))).toBe('STEP_NOT_FOUND');
    expect(await reason(set(scene, root, 't', 2n ** 63n - 1n))).toBe('STEP_NOT_FOUND');
    expect(await reason(set(scene, await scene.create(), 't', 0n))).toBe('STEP_NOT_FOUND');
    expect(await reason(set(scene, { id: randomUUID() }, 't', 0n))).toBe('TRAJECTORY_NOT_FOUND');
    expect(await reason(get(scene, root, 't'))).toBe('TAG_NOT_FOUND');
  });

  it('RD8: a tree shows the first 16 tags by name of each of its visible trajectories', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const child = await scene.branch(root, 1n);
    const [none, other] = [await scene.branch(root, 0n), await scene.createWith(['a'])];
    const names = Array.from({ length: 40 }, (_, i) => `t${String((i * 7) % 40).padStart(2, '0')}`);
    for (const [i, name] of names.entries()) await set(scene, child, name, BigInt(i % 2));
    await set(scene, root, 'Z', 2n);
    await set(scene, other, 'elsewhere', 0n);
    const keys = [root, child, none, other].map(({ ref }) => ref.key);
    const tags = await on.store.readTreeTags(scene.namespace, root.ref.tree, keys);
    expect(new Set(tags.keys())).toEqual(new Set([root.ref.key, child.ref.key]));
    expect(tags.get(root.ref.key)).toEqual([await get(scene, root, 'Z')]);
    const all = await on.store.listTags(scene.namespace, child.id, { limit: 16, after: undefined });
    expect(tags.get(child.ref.key)).toEqual(all);
    expect(await on.store.readTreeTags(scene.namespace, root.ref.tree, [])).toEqual(new Map());
  });

  it('B5: moves only from the expected step; -1 expects no tag', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b', 'c']);
    expect(await refusalOf(set(scene, made, 't', 0n, 1n))).toMatchObject({
      reason: 'TAG_MOVED',
      metadata: { step_number: '-1' },
    });
    await set(scene, made, 't', 0n, -1n);
    expect(await refusalOf(set(scene, made, 't', 1n, -1n))).toMatchObject({
      reason: 'TAG_MOVED',
      metadata: { step_number: '0' },
    });
    expect(await reason(set(scene, made, 't', 1n, 2n))).toBe('TAG_MOVED');
    expect((await get(scene, made, 't')).stepNumber).toBe(0n);
    await set(scene, made, 't', 1n, 0n);
    await set(scene, made, 't', 2n);
    expect((await get(scene, made, 't')).stepNumber).toBe(2n);
  });

  it('B5: of many concurrent compare-and-set calls, one wins', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b', 'c']);
    for (const expected of [-1n, 0n]) {
      const calls = Array.from({ length: 8 }, () => set(scene, made, 't', expected + 1n, expected));
      const results = await Promise.allSettled(calls);
      expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
      for (const each of results)
        if (each.status === 'rejected') expect(each.reason).toMatchObject({ reason: 'TAG_MOVED' });
    }
  });

  it('B5: an append sets and moves tags in the transaction of its steps, also of several trajectories at once', async () => {
    const scene = on.scene();
    const [one, other] = [await scene.createWith(['a', 'b']), await scene.createWith(['a'])];
    await set(scene, one, 'best', 0n);
    const tags = (...of: readonly (readonly [string, bigint])[]) => ({
      tags: of.map(([name, stepNumber]) => ({ name, stepNumber })),
    });
    const outcomes = await scene.store.append(
      [
        scene.batch(one, [wordStep(2n, 'c'), wordStep(3n, 'd')], tags(['best', 2n], ['new', 2n], ['best', 3n])),
        scene.batch(other, [wordStep(1n, 'b')], tags(['best', 1n])),
        scene.batch(one, [wordStep(4n, 'e')], tags(['new', 4n])),
        scene.batch(other, [wordStep(3n, 'gap')], tags(['best', 3n], ['none', 3n])),
      ],
      'never',
    );
    expect(outcomes.map(({ kind }) => kind)).toEqual(['committed', 'committed', 'committed', 'refused']);
    const stepOf = async (of: { id: string }, name: string) => (await get(scene, of, name)).stepNumber;
    expect(await stepOf(one, 'best')).toBe(3n);
    expect(await stepOf(one, 'new')).toBe(4n);
    expect(await stepOf(other, 'best')).toBe(1n);
    expect(await reason(get(scene, other, 'none'))).toBe('TAG_NOT_FOUND');
  });

  it('B5: the tags of repeated steps are ignored, so a replay moves no tag', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const tagged = (stepNumber: bigint) => ({ tags: [{ name: 'best', stepNumber }] });
    await scene.append(made, [wordStep(1n, 'b')], tagged(1n));
    await set(scene, made, 'best', 0n);
    const replay = await scene.append(made, [wordStep(1n, 'b')], tagged(1n));
    expect(replay.duplicates).toBe(1);
    expect((await get(scene, made, 'best')).stepNumber).toBe(0n);
    const both = { tags: [...tagged(1n).tags, { name: 'end', stepNumber: 2n }] };
    await scene.append(made, [wordStep(1n, 'b'), wordStep(2n, 'c')], both);
    expect((await get(scene, made, 'best')).stepNumber).toBe(0n);
    expect((await get(scene, made, 'end')).stepNumber).toBe(2n);
  });

  it('B5: a message without tags takes no statement for them; one with tags takes one more', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    // A state with a row of its own keeps both from the short path of plain steps.
    const state = newState('a state with a row of its own');
    await putState(scene.store, scene.namespace, state.data);
    const cost = async (steps: readonly bigint[], names: readonly string[]) => {
      const tags = names.map((name) => ({ name, stepNumber: steps[0]! }));
      const batch = scene.batch(
        made,
        steps.map((step) => makeStep(step, { states: [stateRef(state)] })),
        { tags },
      );
      return statementsOf(on.engine, () => scene.store.append([batch], 'never'));
    };
    await cost([1n, 2n], []);
    const plain = await cost([3n, 4n], []);
    expect(await cost([5n, 6n], ['a'])).toBe(plain + 1);
    expect(await cost([7n, 8n], [])).toBe(plain);
  });

  it('B5: sealed trajectories accept tags too', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await scene.seal(made);
    expect(await set(scene, made, 'late', 0n)).toMatchObject({ stepNumber: 0n });
  });

  it('B5: are listed by name in byte order, in pages; names that differ only in case are distinct', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b']);
    const names = ['a', 'B', 'b', 'A', 'a.1', 'a/1', 'a-1', 'a_1', 'a1', 'Z', 'z'];
    for (const [i, name] of names.entries()) await set(scene, made, name, BigInt(i % 2));
    const sorted = [...names].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    const all = await scene.store.listTags(scene.namespace, made.id, { limit: 100, after: undefined });
    expect(all.map(({ name }) => name)).toEqual(sorted);
    expect(all.map(({ stepNumber }) => stepNumber)).toEqual(sorted.map((name) => BigInt(names.indexOf(name) % 2)));
    const paged: string[] = [];
    for (let after: string | undefined; ; after = paged.at(-1)) {
      const page = await scene.store.listTags(scene.namespace, made.id, { limit: 1, after });
      if (page[0] === undefined) break;
      paged.push(page[0].name);
    }
    expect(paged).toEqual(sorted);
    const named = (name: string, after?: string) =>
      scene.store.listTags(scene.namespace, made.id, { limit: 9, after }, name);
    expect(await named('a')).toEqual([await get(scene, made, 'a')]);
    expect([await named('none'), await named('a', 'a')]).toEqual([[], []]);
    expect(await reason(scene.store.listTags(scene.namespace, randomUUID(), { limit: 1, after: undefined }))).toBe(
      'TRAJECTORY_NOT_FOUND',
    );
  });

  it('B5: can be deleted, once', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await set(scene, made, 't', 0n);
    await set(scene, made, 'T', 0n);
    await scene.store.deleteTag(scene.namespace, made.id, 't');
    expect(await reason(get(scene, made, 't'))).toBe('TAG_NOT_FOUND');
    expect(await reason(scene.store.deleteTag(scene.namespace, made.id, 't'))).toBe('TAG_NOT_FOUND');
    expect((await get(scene, made, 'T')).stepNumber).toBe(0n);
    expect(await reason(scene.store.deleteTag(scene.namespace, randomUUID(), 't'))).toBe('TRAJECTORY_NOT_FOUND');
    await set(scene, made, 't', 0n, -1n);
  });

  it('B2: are deleted with their trajectory; tags of branches on its steps stay', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const child = await scene.branch(root, 0n);
    await set(scene, root, 'mine', 1n);
    await set(scene, child, 'inherited', 0n);
    await scene.delete(root, 'KEEP_SHARED');
    expect(await reason(get(scene, root, 'mine'))).toBe('TRAJECTORY_NOT_FOUND');
    expect(await reason(set(scene, root, 'new', 0n))).toBe('TRAJECTORY_NOT_FOUND');
    expect(await on.sql.rows(`select name from tags where namespace = '${scene.namespace}'`)).toEqual([
      { name: 'inherited' },
    ]);
    expect((await get(scene, child, 'inherited')).stepNumber).toBe(0n);
  });
});
