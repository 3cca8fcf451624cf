import { randomBytes, randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { RunDeletion } from '../../src/store/contract/experiment.ts';
import { newPolicy } from '../support/retention_policies.ts';
import { makeStep, newState, textObservation } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { furnishRollouts } from './furnish_rollouts.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { newTrajectory, putState, refusalOf } from './scene.ts';
import { countRows, dumpNamespace } from './sql.ts';
import { expectVerified } from './verified.ts';

/** Tables that have rows while something is under way. */
const MOMENTARY = ['state_uploads', 'trajectory_imports'];

describeStore('B6: a namespace that is deleted', (on) => {
  /** A namespace with rows in every table. */
  async function filled(): Promise<RolloutScene> {
    const here = new RolloutScene(on.store, randomUUID());
    const { store, namespace } = here;
    const { run, stage } = await here.place();
    await furnishRollouts(here, run);
    await here.queue(stage, 5);
    await here.claims({ stageId: stage.id, count: 2 });
    await store.logMetrics(namespace, run.id, [{ stageId: undefined, name: 'loss', metricStep: 0n, value: 1 }]);
    await here.createWith(['alone']);
    const root = await here.createWith(['a', 'b', 'c'], { scoredMetrics: ['m'] });
    const branch = await here.branch(root, 1n);
    await store.setTag(namespace, branch.id, 'here', 0n, undefined);
    await here.delete(root, 'KEEP_SHARED');
    const making = { ...newTrajectory({ id: randomUUID() }), createDigest: 'd' };
    const create = { making, key: { rpc: 'CreateTrajectory', requestId: randomUUID(), requestDigest: 'd' } };
    const opening = { trajectoryId: making.id, uid: undefined, writerId: 'w', takeOverEpoch: undefined };
    await store.openForAppend(here.caller, { ...opening, expectedNextStepNumber: undefined }, create);
    await here.delete(making);
    const key = { rpc: 'CreateTrajectory', requestId: randomUUID(), requestDigest: 'd' };
    await here.create({}, key);
    await store.setRetentionPolicy(namespace, newPolicy('p'));
    const large = randomBytes(300_000);
    const digest = await putState(store, namespace, large);
    const content = { kind: 'state', digest, mediaType: '', size: large.length } as const;
    const scored = await here.create({ scoredMetrics: ['m'] });
    const contents = { observations: [textObservation('', { content })], metrics: new Map([['m', 1]]) };
    await here.append(scored, [makeStep(0n, contents)]);
    const later = newState('attached');
    const attached = { name: 'later', digest: later.digest, mediaType: 'a/b', data: later.data };
    const at = { trajectoryId: scored.id, uid: undefined, writerEpoch: undefined, stepNumber: 0n };
    await store.attachState(here.caller, { ...at, ...attached });
    return here;
  }

  async function deleted({ namespace }: RolloutScene, cancelLive = true): Promise<RunDeletion> {
    const all = { runs: 0n, trajectories: 0n, runKeys: [] as bigint[], trajectoryKeys: [] as bigint[] };
    for await (const { runs, trajectories, runKeys, trajectoryKeys } of on.store.deleteNamespace(
      namespace,
      cancelLive,
    )) {
      all.runs += runs;
      all.trajectories += trajectories;
      all.runKeys.push(...runKeys);
      all.trajectoryKeys.push(...trajectoryKeys);
    }
    return all;
  }

  const rowsOf = async ({ namespace }: RolloutScene) =>
    Object.entries(await countRows(on.sql, namespace)).filter(([, count]) => count > 0);

  it('has no row in any table, and another one is as before', async () => {
    const [here, other] = [await filled(), await filled()];
    const before = await dumpNamespace(on.sql, other.namespace);
    expect(await on.store.listNamespaces()).toEqual(expect.arrayContaining([here.namespace, other.namespace]));
    expect(await deleted(here)).toMatchObject({ runs: 1n });
    await collectUnused(on.store);
    expect(await rowsOf(here)).toEqual([]);
    expect(await on.store.listNamespaces()).not.toContain(here.namespace);
    const counts = Object.entries(await countRows(on.sql, other.namespace));
    expect(counts.filter(([, count]) => count === 0).map(([table]) => table)).toEqual(MOMENTARY);
    expect(await dumpNamespace(on.sql, other.namespace)).toBe(before);
    await expectVerified(on.store);
    expect(await deleted(here)).toEqual({ runs: 0n, trajectories: 0n, runKeys: [], trajectoryKeys: [] });
  });

  it('with live rollouts is kept whole, unless they may be cancelled', async () => {
    const here = await filled();
    const before = await dumpNamespace(on.sql, here.namespace);
    expect((await refusalOf(deleted(here, false))).reason).toBe('RUN_ACTIVE');
    expect(await dumpNamespace(on.sql, here.namespace)).toBe(before);
  });

  it('is deleted to its end by a second call, after the first was interrupted', async () => {
    const here = await filled();
    for await (const _ of on.store.deleteNamespace(here.namespace, true)) break;
    expect(await rowsOf(here)).not.toEqual([]);
    await deleted(here);
    await collectUnused(on.store);
    expect(await rowsOf(here)).toEqual([]);
  });
});
