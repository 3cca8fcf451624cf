import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { beforeAll, describe, expect, it } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { TABLES } from '../../src/store/sql/kit/tables.ts';
import { ENGINES } from '../support/database.ts';
import { makeStep, newState, smallRef, stateRef, textObservation } from '../support/steps.ts';
import { archivedLines, exported, imported, onTarget } from './archived.ts';
import { furnishRollouts } from './furnish_rollouts.ts';
import { describeStore } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { putState } from './scene.ts';
import { stateOf } from './state_chains.ts';
import { expectVerified } from './verified.ts';

const CHUNK = 256 * 1024;
/** Steps with states of every kind, in a root and two branches, and runs with rollouts. */
async function furnish(store: Store): Promise<{ scene: RunScene; root: string; leaf: string; run: string }> {
  const scene = new RunScene(store);
  const root = await scene.create({ scoredMetrics: ['value'] });
  const small = newState(`small ${scene.namespace}`);
  const chain = [0, 1, 2].map((i) => stateOf(5, 9000, [i]));
  for (const [i, state] of chain.entries()) {
    const step = makeStep(BigInt(i), {
      reward: i + 0.5,
      terminated: i === 2,
      startTime: 1_000_000_000n,
      endTime: 3_500_000_000n,
      metrics: new Map([['value', i]]),
      labels: new Map([['phase', 'seen']]),
      states: [stateRef(state, 'big'), smallRef(small, 'env')],
    });
    await scene.append(root, [step], { states: [state] });
  }
  for (const later of [newState('attached'), stateOf(7, 6000, [])]) {
    await scene.store.attachState(scene.caller, {
      trajectoryId: root.id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber: 1n,
      name: `later${later.data.length}`,
      digest: later.digest,
      mediaType: 'a/b',
      data: later.data,
    });
  }
  const child = await scene.branch(root, 1n);
  await scene.append(child, [makeStep(2n, { reward: 2 }), makeStep(3n, { reward: Number.NaN })]);
  await scene.store.setTag(scene.namespace, child.id, 'best', 3n, undefined);
  const leaf = await scene.branch(child, 2n);
  await scene.append(leaf, [makeStep(3n, { states: [stateRef(chain[2]!, 'big')] })]);
  await scene.seal(leaf, 'FAILED', 'why');
  const large = await putState(store, scene.namespace, randomBytes(3 * CHUNK + 100), CHUNK);
  const content = { kind: 'state', digest: large, mediaType: '', size: 3 * CHUNK + 100 } as const;
  await scene.append(root, [makeStep(3n, { observations: [textObservation('', { content })] })]);
  await scene.open(root, 'writer');
  const run = await scene.makeRunWith(['a', 'b'], { status: 'RUNNING' });
  await furnishRollouts(scene, run);
  await store.logMetrics(scene.namespace, run.id, [
    { stageId: undefined, name: 'loss', metricStep: 3n, value: 0.5 },
    { stageId: undefined, name: 'loss', metricStep: 4n, value: Number.NaN },
  ]);
  return { scene, root: root.id, leaf: leaf.id, run: run.id };
}

it('archive.md says of each table what archives have of it', () => {
  const document = readFileSync(new URL('../../docs/archive.md', import.meta.url), 'utf8');
  const [, table] = document.split('## What happens to each table');
  const rows = table!.split('\n').filter((line) => line.startsWith('| `'));
  const named = rows.flatMap((row) => [...row.split('|')[1]!.matchAll(/`(\w+)`/g)].map(([, table]) => table));
  expect(named.toSorted()).toEqual(Object.keys(TABLES).toSorted());
});

describeStore('archives', (on) => {
  it('V6: each part of steps has its small states, also if large states split it', async () => {
    const scene = new RunScene(on.store);
    const made = await scene.create();
    for (let i = 0; i < 12; i += 1) {
      const [large, small] = [newState(randomBytes(460 * 1024)), newState(`small ${i % 2}`)];
      const states = [stateRef(large, 'env'), smallRef(small, 'agent')];
      await scene.append(made, [makeStep(BigInt(i), { states })], { states: [large] });
    }
    const parts = await exported(on.store, scene.namespace);
    expect(parts.filter(({ kind }) => kind === 'steps').length).toBeGreaterThan(1);
    await onTarget(on.engine, async (store) => {
      await imported(store, scene.namespace, parts);
      expect(archivedLines(await exported(store, scene.namespace))).toEqual(archivedLines(parts));
      await expectVerified(store);
    });
  });

  /** Exported by all tests below, and changed by none. */
  let furnished: Awaited<ReturnType<typeof furnish>>;
  beforeAll(async () => {
    furnished = await furnish(on.store);
  });

  describe.each(ENGINES)('into %s', (target) => {
    it('V6: a namespace that is exported and imported is exported again as it was', async () => {
      const { scene } = furnished;
      const parts = await exported(on.store, scene.namespace);
      await onTarget(target, async (store) => {
        const progress = await imported(store, scene.namespace, parts);
        expect(progress).toMatchObject({ leftOut: [], presentTrajectories: 0n });
        expect(archivedLines(await exported(store, scene.namespace))).toEqual(archivedLines(parts));
        await expectVerified(store);
        const again = await imported(store, scene.namespace, parts);
        expect(again).toMatchObject({ trajectories: 0n, runs: 0n, rollouts: 0n });
        expect(again.presentTrajectories).toBe(progress.trajectories);
        expect(archivedLines(await exported(store, scene.namespace))).toEqual(archivedLines(parts));
      });
    });

    it('V5: a branch brings its ancestors up to the branch points, which are hidden', async () => {
      const { scene, root, leaf } = furnished;
      const parts = await exported(on.store, scene.namespace, { kind: 'trajectory', id: leaf });
      await onTarget(target, async (store) => {
        await imported(store, scene.namespace, parts);
        const there = new RunScene(store, scene.namespace);
        expect(await there.isThere(root)).toBe(false);
        expect(await there.steps({ id: leaf })).toMatchObject(
          (await scene.steps({ id: leaf })).map(({ step }) => ({ step })),
        );
        await expectVerified(store);
        await there.delete({ id: leaf });
        expect(await exported(store, scene.namespace)).toHaveLength(2);
      });
    });
  });
});
