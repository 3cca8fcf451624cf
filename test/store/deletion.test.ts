import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { makeStep, newState, stateRef, textObservation, wordStep } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore } from './on_store.ts';
import { refusalOf, type Scene } from './scene.ts';
import { countRows } from './sql.ts';

describeStore('deletion', (on) => {
  const reason = (call: Promise<unknown>) => refusalOf(call).then((error) => error.reason);
  const ownSteps = async (scene: Scene, key: bigint) =>
    (
      await on.sql.rows(
        `select step_number from steps where namespace = '${scene.namespace}' and trajectory = ${key} order by step_number`,
      )
    ).map((row) => Number(row.step_number));
  const rows = async (scene: Scene) => (await countRows(on.sql, scene.namespace)).trajectories;

  it('B2: REFUSE without branches deletes; a deleted trajectory is NOT_FOUND and cannot be deleted again', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b']);
    expect(await scene.delete(made)).toEqual({ purged: 1n, keptShared: false, keys: [made.ref.key] });
    expect(await scene.isThere(made.id)).toBe(false);
    for (const mode of ['REFUSE', 'CASCADE', 'KEEP_SHARED'] as const)
      expect(await refusalOf(scene.delete(made, mode))).toMatchObject({
        reason: 'TRAJECTORY_NOT_FOUND',
        metadata: { trajectory_id: made.id },
      });
    expect(await reason(scene.branch(made, 0n))).toBe('TRAJECTORY_NOT_FOUND');
    expect(await reason(scene.append(made, [wordStep(2n, 'c')]))).toBe('TRAJECTORY_NOT_FOUND');
    expect(await scene.store.getLineage(scene.namespace, made.ref)).toEqual([]);
  });

  it('B2: REFUSE with branches fails, names at most 20 of them, and deletes nothing', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b']);
    const one = await scene.branch(made, 0n);
    const two = await scene.branch(made, 1n);
    const error = await refusalOf(scene.delete(made));
    expect(error.reason).toBe('HAS_BRANCHES');
    expect(error.metadata.branch_ids?.split(',').sort()).toEqual([one.id, two.id].sort());
    expect(await scene.words(made)).toEqual(['a', 'b']);
    for (let i = 0; i < 23; i += 1) await scene.branch(made, 0n);
    expect((await refusalOf(scene.delete(made))).metadata.branch_ids?.split(',')).toHaveLength(20);
  });

  it('B2: hidden children count as branches', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const child = await scene.branch(root, 1n);
    await scene.appendWords(child, ['c']);
    const leaf = await scene.branch(child, 2n);
    await scene.delete(child, 'KEEP_SHARED');
    expect(await reason(scene.delete(root))).toBe('HAS_BRANCHES');
    expect(await scene.words(leaf)).toEqual(['a', 'b', 'c']);
  });

  it('B2: CASCADE deletes all branches, transitively and including hidden ones, and returns the deleted keys', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const one = await scene.branch(root, 0n);
    await scene.appendWords(one, ['c']);
    const two = await scene.branch(one, 1n);
    const three = await scene.branch(two, 0n);
    const outside = await scene.createWith(['x']);
    await scene.delete(one, 'KEEP_SHARED');
    const deletion = await scene.delete(root, 'CASCADE');
    expect(deletion).toMatchObject({ purged: 4n, keptShared: false });
    expect([...deletion.keys].sort()).toEqual([root, one, two, three].map(({ ref }) => ref.key).sort());
    expect(await rows(scene)).toBe(1);
    expect(await scene.words(outside)).toEqual(['x']);
  });

  it('B2: CASCADE of a branch leaves its parent and its siblings unchanged', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const one = await scene.branch(root, 0n);
    const two = await scene.branch(root, 1n);
    await scene.branch(one, 0n);
    expect(await scene.delete(one, 'CASCADE')).toMatchObject({ purged: 1n });
    expect(await rows(scene)).toBe(3);
    expect(await scene.words(two)).toEqual(['a', 'b']);
    expect(await scene.words(root)).toEqual(['a', 'b']);
  });

  it('B2: KEEP_SHARED without branches purges', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    expect(await scene.delete(made, 'KEEP_SHARED')).toMatchObject({ purged: 1n, keptShared: false });
    expect(await rows(scene)).toBe(0);
  });

  it('B2: KEEP_SHARED hides and trims to the highest branch point; branches can be read as before', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c', 'd']);
    const low = await scene.branch(root, 0n);
    const high = await scene.branch(root, 2n);
    const deletion = await scene.delete(root, 'KEEP_SHARED');
    expect(deletion).toMatchObject({ purged: 0n, keptShared: true });
    expect(deletion.keys).toContain(root.ref.key);
    expect(await scene.isThere(root.id)).toBe(false);
    expect(await ownSteps(scene, root.ref.key)).toEqual([0, 1, 2]);
    expect(await scene.words(high)).toEqual(['a', 'b', 'c']);
    expect(await scene.words(low)).toEqual(['a']);
    expect((await scene.store.getLineage(scene.namespace, high.ref)).map(({ hidden }) => hidden)).toEqual([
      true,
      false,
    ]);
    expect(await reason(scene.delete(root, 'KEEP_SHARED'))).toBe('TRAJECTORY_NOT_FOUND');
    await scene.appendWords(high, ['D']);
    expect((await scene.append(high, [wordStep(1n, 'b')])).duplicates).toBe(1);
  });

  it('B2: a hidden trajectory is trimmed again whenever a child is purged, and purged with its last child', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c', 'd']);
    const low = await scene.branch(root, 0n);
    const high = await scene.branch(root, 2n);
    await scene.delete(root, 'KEEP_SHARED');
    await scene.delete(high);
    expect(await ownSteps(scene, root.ref.key)).toEqual([0]);
    expect(await scene.words(low)).toEqual(['a']);
    const last = await scene.delete(low);
    expect(last).toMatchObject({ purged: 2n });
    expect([...last.keys].sort()).toEqual([root.ref.key, low.ref.key].sort());
    expect(await rows(scene)).toBe(0);
  });

  it('B2: the purge of the last leaf purges a whole chain of hidden ancestors, but no visible ancestor', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['0', '0']);
    const chain = [root];
    for (let depth = 1; depth <= 5; depth += 1) {
      const child = await scene.branch(chain.at(-1) as typeof root, BigInt(depth));
      await scene.appendWords(child, [`${depth}`]);
      chain.push(await scene.get(child.id));
    }
    for (const hidden of chain.slice(1, -1)) await scene.delete(hidden, 'KEEP_SHARED');
    expect(await scene.delete(chain.at(-1) as typeof root)).toMatchObject({ purged: 5n });
    expect(await rows(scene)).toBe(1);
    expect(await scene.words(root)).toEqual(['0', '0']);
    expect(await scene.delete(root)).toMatchObject({ purged: 1n });
  });

  it('B2: parent first or child first, deletion leaves nothing and loses nothing early', async () => {
    for (const parentFirst of [true, false]) {
      const scene = on.scene();
      const root = await scene.createWith(['a', 'b']);
      const child = await scene.branch(root, 0n);
      await scene.appendWords(child, ['c']);
      if (parentFirst) {
        await scene.delete(root, 'KEEP_SHARED');
        expect(await scene.words(child)).toEqual(['a', 'c']);
        await scene.delete(child);
      } else {
        await scene.delete(child);
        expect(await scene.words(root)).toEqual(['a', 'b']);
        await scene.delete(root);
      }
      expect(await rows(scene)).toBe(0);
    }
  });

  it('B2: a hidden ancestor is branched by naming a visible trajectory that contains the step', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const child = await scene.branch(root, 1n);
    await scene.delete(root, 'KEEP_SHARED');
    const late = await scene.branch(child, 0n);
    expect(late.parent).toMatchObject({ key: root.ref.key, branchPoint: 0n });
    expect(await scene.words(late)).toEqual(['a']);
    await scene.delete(child);
    expect(await ownSteps(scene, root.ref.key)).toEqual([0]);
    expect(await scene.words(late)).toEqual(['a']);
  });

  it('B2: hidden trajectories are absent from lists, and shown as deleted in lineage and tree', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b'], { taskId: 'T', name: 'n', labels: new Map([['k', 'v']]) });
    const child = await scene.branch(root, 0n);
    await scene.delete(root, 'KEEP_SHARED');
    const list = (filter: object) =>
      scene.store.listTrajectories(scene.namespace, filter, { limit: 9, after: undefined });
    expect((await list({})).map(({ id }) => id)).toEqual([child.id]);
    for (const filter of [{ name: 'n' }, { labels: new Map([['k', 'v']]) }, { rootsOnly: true }])
      expect(await list(filter)).toEqual([]);
    expect((await list({ parentId: root.id })).map(({ id }) => id)).toEqual([child.id]);
    expect((await list({ treeId: root.id })).map(({ id }) => id)).toEqual([child.id]);
  });

  it('B3: the id of a hidden trajectory cannot be used again; after the purge it can, with a new uid and key', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const child = await scene.branch(root, 0n);
    await scene.delete(root, 'KEEP_SHARED');
    expect(await reason(scene.create({ id: root.id }))).toBe('TRAJECTORY_EXISTS');
    expect(await reason(scene.branch(child, 0n, { id: root.id }))).toBe('TRAJECTORY_EXISTS');
    await scene.delete(child);
    const again = await scene.createWith(['z'], { id: root.id });
    expect(again.uid).not.toBe(root.uid);
    expect(again.ref.key).not.toBe(root.ref.key);
    expect(await scene.words(again)).toEqual(['z']);
  });

  it('B3: a late writer gets NOT_FOUND, also after the id was created again, by stream, reopen and unary call', async () => {
    const scene = on.scene();
    const old = await scene.createWith(['a']);
    const epoch = await scene.open(old);
    await scene.delete(old);
    const again = await scene.createWith(['a'], { id: old.id });
    await scene.open(again);
    const step = wordStep(1n, 'b');
    expect(await reason(scene.append(old, [step], { writerEpoch: epoch }))).toBe('TRAJECTORY_NOT_FOUND');
    expect(await reason(scene.append(again, [step], { writerEpoch: epoch, uid: old.uid }))).toBe(
      'TRAJECTORY_NOT_FOUND',
    );
    const reopen = { trajectoryId: old.id, writerId: 'w', takeOverEpoch: epoch, expectedNextStepNumber: undefined };
    expect(await reason(scene.store.openForAppend(scene.caller, { ...reopen, uid: old.uid }))).toBe(
      'TRAJECTORY_NOT_FOUND',
    );
    expect(await scene.words(again)).toEqual(['a']);
    expect((await scene.get(again.id)).writerEpoch).toBe(1n);
  });

  it('B3: row keys are never used again, not even the highest', async () => {
    const scene = on.scene();
    const seen = new Set<bigint>();
    for (let i = 0; i < 5; i += 1) {
      const made = await scene.create();
      expect(seen.has(made.ref.key)).toBe(false);
      seen.add(made.ref.key);
      await scene.delete(made);
    }
  });

  it('B3: no data of a deleted trajectory shows in one that is created with its id', async () => {
    const scene = on.scene();
    const old = await scene.createWith(['a', 'b', 'c']);
    await scene.store.setTag(scene.namespace, old.id, 'best', 2n, undefined);
    await scene.seal(old, 'FAILED', 'old');
    await scene.delete(old);
    const again = await scene.create({ id: old.id });
    expect(again).toMatchObject({ status: 'RUNNING', statusMessage: '', nextStepNumber: 0n, rewardSum: 0 });
    const tags = await scene.store.listTags(scene.namespace, again.id, { limit: 9, after: undefined });
    expect(tags).toEqual([]);
  });

  it('B2, S2: deletion is complete: no row of any table remains except idempotency keys', async () => {
    const scene = on.scene();
    const states = ['a', 'b', 'c', 'd'].map((text) => newState(text.repeat(5000)));
    const root = await scene.create(
      {
        root: makeStep(0n, { states: [stateRef(states[0] as (typeof states)[number])] }),
        states: [states[0] as (typeof states)[number]],
      },
      { rpc: 'CreateTrajectory', requestId: randomUUID(), requestDigest: 'x' },
    );
    const shot = states[1] as (typeof states)[number];
    const content = { kind: 'state', digest: shot.digest, mediaType: 'image/png', size: shot.data.length } as const;
    await scene.append(root, [makeStep(1n, { observations: [textObservation('', { content })] })], { states: [shot] });
    await scene.open(root);
    const child = await scene.branch(root, 1n);
    await scene.append(child, [makeStep(2n, { states: [stateRef(states[2] as (typeof states)[number])] })], {
      states: [states[2] as (typeof states)[number]],
      seal: { status: 'COMPLETED', message: 'done' },
    });
    const big = new Uint8Array(600_000).map((_, i) => i * 7);
    const upload = scene.store.putState(scene.namespace);
    await upload.write(big.subarray(0, 256 * 1024));
    await upload.write(big.subarray(256 * 1024));
    const { digest } = await upload.finish();
    await scene.store.attachState(scene.caller, {
      trajectoryId: child.id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber: 2n,
      name: 'agent',
      digest,
      mediaType: '',
      data: undefined,
    });
    await scene.store.setTag(scene.namespace, root.id, 't', 0n, undefined);
    await scene.store.setTag(scene.namespace, child.id, 't', 0n, undefined);
    await scene.store.updateTrajectory(scene.namespace, child.id, { metrics: new Map([['m', 1]]) });
    const full = await countRows(on.sql, scene.namespace);
    // Deletion of runs has its own file (run_deletion.test.ts).
    const ours = ['trajectories', 'segments', 'state_refs', 'attached_states', 'states', 'state_chunks', 'tags'];
    for (const table of [...ours, 'status_changes', 'requests'])
      expect([table, (full[table] ?? 0) > 0]).toEqual([table, true]);

    await scene.delete(root, 'KEEP_SHARED');
    await scene.delete(child);
    await collectUnused(on.store);
    const left = Object.entries(await countRows(on.sql, scene.namespace)).filter(([, n]) => n > 0);
    expect(left).toEqual([['requests', 1]]);
  });

  it('L1, B2: sealed trajectories are deleted like others', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await scene.seal(made);
    expect(await scene.delete(made)).toMatchObject({ purged: 1n });
  });

  it('B2: one call deletes ten thousand steps', async () => {
    const scene = on.scene();
    const made = await scene.create();
    for (let from = 0; from < 10_000; from += 1000)
      await scene.append(
        made,
        Array.from({ length: 1000 }, (_, i) => wordStep(BigInt(from + i), 'x')),
      );
    const child = await scene.branch(made, 4_999n);
    await scene.delete(made, 'KEEP_SHARED');
    expect(await ownSteps(scene, made.ref.key)).toHaveLength(5_000);
    await scene.delete(child);
    expect(await ownSteps(scene, made.ref.key)).toHaveLength(0);
  });
});
