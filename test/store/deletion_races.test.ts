import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore } from './on_store.ts';
import { countRows } from './sql.ts';

describeStore('deletion concurrent with other work', (on) => {
  type Settled = PromiseSettledResult<unknown>;
  const outcome = (result: Settled) =>
    result.status === 'fulfilled' ? 'done' : String((result.reason as { reason?: string }).reason ?? result.reason);

  it('O2, B2: a branch created while its parent is appended to and deleted is complete, or is refused', async () => {
    const modes = ['REFUSE', 'KEEP_SHARED', 'CASCADE'] as const;
    const scene = on.scene();
    const seen = new Set<string>();
    for (let round = 0; round < dose(12, 45); round += 1) {
      const mode = modes[round % 3] as (typeof modes)[number];
      const root = await scene.createWith(['a', 'b', 'c', 'd']);
      const anchor = round % 2 === 0 ? await scene.branch(root, 1n) : undefined;
      const id = randomUUID();
      const [branched, appended, deleted] = (await Promise.allSettled([
        scene.branch(root, 2n, { id }),
        scene.append(root, [wordStep(4n, 'e')]),
        scene.delete(root, mode),
      ])) as [Settled, Settled, Settled];
      expect(['done', 'TRAJECTORY_NOT_FOUND']).toContain(outcome(branched));
      expect(['done', 'TRAJECTORY_NOT_FOUND']).toContain(outcome(appended));
      expect(['done', ...(mode === 'REFUSE' ? ['HAS_BRANCHES'] : [])]).toContain(outcome(deleted));
      seen.add(`${outcome(branched)} ${outcome(deleted)}`);
      if (await scene.isThere(id)) {
        expect(outcome(branched)).toBe('done');
        expect(await scene.words({ id })).toEqual(['a', 'b', 'c']);
      } else if (outcome(branched) === 'done') expect(mode).toBe('CASCADE');
      if (anchor !== undefined && mode !== 'CASCADE') expect(await scene.words(anchor)).toEqual(['a', 'b']);
      if (await scene.isThere(root.id)) {
        expect(outcome(deleted)).toBe('HAS_BRANCHES');
        expect(await scene.words(root)).toEqual(['a', 'b', 'c', 'd', 'e']);
      }
    }
    expect(seen.size).toBeGreaterThan(1);
  });

  it('B2: concurrent deletes in one tree all end, with the result of some sequential order', async () => {
    for (let round = 0; round < dose(5, 10); round += 1) {
      const scene = on.scene();
      const root = await scene.createWith(['a', 'b', 'c']);
      const children = await Promise.all([0n, 1n, 2n].map((n) => scene.branch(root, n)));
      const leaves = await Promise.all(children.map((child, n) => scene.branch(child, BigInt(n))));
      const results = await Promise.allSettled([
        scene.delete(root, 'KEEP_SHARED'),
        ...children.map((child) => scene.delete(child, 'KEEP_SHARED')),
        ...leaves.map((leaf) => scene.delete(leaf)),
      ]);
      expect(results.map(outcome)).toEqual(results.map(() => 'done'));
      expect(await countRows(on.sql, scene.namespace)).toMatchObject({ trajectories: 0, steps: 0, status_changes: 0 });
    }
  });

  it('B2: of many concurrent deletes of one trajectory, one deletes it', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const results = await Promise.allSettled(Array.from({ length: 6 }, () => scene.delete(made)));
    expect(results.map(outcome).sort()).toEqual([...Array(5).fill('TRAJECTORY_NOT_FOUND'), 'done'].sort());
  });

  it('B2, B5: a tag set while its trajectory is deleted does not outlive it', async () => {
    const scene = on.scene();
    for (let round = 0; round < dose(6, 15); round += 1) {
      const made = await scene.createWith(['a']);
      const [tagged] = (await Promise.allSettled([
        scene.store.setTag(scene.namespace, made.id, 't', 0n, undefined),
        scene.delete(made),
      ])) as [Settled, Settled];
      expect(['done', 'TRAJECTORY_NOT_FOUND']).toContain(outcome(tagged));
    }
    expect(await countRows(on.sql, scene.namespace)).toMatchObject({ tags: 0, trajectories: 0 });
  });

  it('B3: appends, seals and attachments concurrent with a delete leave no rows', async () => {
    const scene = on.scene();
    for (let round = 0; round < dose(6, 15); round += 1) {
      const made = await scene.createWith(['a']);
      const state = newState(`${round}`);
      const attaching = {
        trajectoryId: made.id,
        uid: made.uid,
        writerEpoch: undefined,
        stepNumber: 0n,
        name: 'env',
        digest: state.digest,
        mediaType: '',
        data: state.data,
      };
      const results = await Promise.allSettled([
        scene.append(made, [makeStep(1n, { states: [stateRef(state)] })], { states: [state] }),
        scene.store.attachState(scene.caller, attaching),
        scene.store.updateTrajectory(scene.namespace, made.id, { name: 'x' }),
        scene.delete(made),
      ]);
      for (const each of results) expect(['done', 'TRAJECTORY_NOT_FOUND']).toContain(outcome(each));
    }
    await collectUnused(on.store);
    const left = Object.entries(await countRows(on.sql, scene.namespace)).filter(([, n]) => n > 0);
    expect(left).toEqual([]);
  });
});
