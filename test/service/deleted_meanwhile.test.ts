import { create } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import { ReadStatesRequestSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import type { Caller } from '../../src/domain/caller.ts';
import { trajectoryHint } from '../../src/domain/change.ts';
import { readStates } from '../../src/service/state/read.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { appWithin } from '../../src/stream/app.ts';
import { RunScene } from '../store/run_scene.ts';
import { refusalOf } from '../store/scene.ts';
import { callOf } from '../support/parts_call.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, all, describeApp, state, step } from './on_app.ts';
import { servicesOf } from './services.ts';

/** A read, the call of the store before which the trajectory is deleted, and the expected error. */
type Case = readonly [
  what: string,
  before: keyof Store,
  reason: string,
  read: (scene: AppScene, trajectoryId: string) => Promise<unknown>,
];

const CASES: readonly Case[] = [
  [
    'a step',
    'readSteps',
    'TRAJECTORY_NOT_FOUND',
    ({ rpc }, trajectoryId) => rpc.getStep({ trajectoryId, stepNumber: 1n }),
  ],
  ['a list of steps', 'listSteps', 'TRAJECTORY_NOT_FOUND', ({ rpc }, trajectoryId) => rpc.listSteps({ trajectoryId })],
  [
    'the latest checkpoint',
    'findCheckpoint',
    'TRAJECTORY_NOT_FOUND',
    ({ rpc }, trajectoryId) => rpc.getCheckpoint({ trajectoryId }),
  ],
  [
    'a checkpoint at a number',
    'readSteps',
    'TRAJECTORY_NOT_FOUND',
    ({ rpc }, trajectoryId) => rpc.getCheckpoint({ trajectoryId, stepNumber: 1n }),
  ],
  ['the lineage', 'getOwners', 'TRAJECTORY_NOT_FOUND', ({ rpc }, trajectoryId) => rpc.getLineage({ trajectoryId })],
  ['the tree', 'listTree', 'TRAJECTORY_NOT_FOUND', ({ rpc }, trajectoryId) => rpc.getTree({ trajectoryId })],
  [
    'a comparison',
    'readOutlines',
    'TRAJECTORY_DELETED',
    async (scene, trajectoryId) =>
      scene.rpc.compareTrajectories({
        trajectoryId,
        otherTrajectoryId: (await scene.createWith(['a', 'b', 'c'])).id,
        startStepNumber: 0n,
        endStepNumber: 9n,
      }),
  ],
  ['a range of steps', 'readEncodedSteps', 'TRAJECTORY_DELETED', (scene, id) => all(scene.read({ id }))],
  [
    'a sequence of states',
    'listStepStates',
    'TRAJECTORY_DELETED',
    ({ app, caller }, trajectoryId) =>
      all(readStates(create(ReadStatesRequestSchema, { range: { trajectoryId } }), callOf(app, caller))),
  ],
];

describeApp('a trajectory that is deleted between two reads', (on) => {
  it.each(CASES)('RD1: %s is refused, never returned incomplete', async (_what, method, reason, read) => {
    let deleting: () => Promise<unknown> = async () => undefined;
    const original = on.store[method] as (...args: unknown[]) => Promise<unknown>;
    const racing = wrappedStore(on.store, {
      [method]: async (...args: unknown[]) => {
        await deleting();
        return original.apply(on.store, args);
      },
    });
    const app = on.app({}, racing);
    const scene = on.scene(app);
    const { id } = await scene.create();
    await scene.write({ id }, [step(0n, 'a'), step(1n, 'b', { states: [state('s')] })]);
    const reading = read(scene, id);
    deleting = async () => {
      deleting = async () => undefined;
      await scene.rpc.deleteTrajectory({ trajectoryId: id });
      // Another trajectory under the same id is not the requested one.
      await scene.create({ id });
    };
    expect((await refusalOf(reading)).reason).toBe(reason);
    await app.close();
  });

  it('RD1, RD3: results from a lineage whose leaf was deleted meanwhile are not returned: a checkpoint, a page of a list', async () => {
    const scene = on.scene();
    const { id } = await scene.create();
    await scene.write({ id }, [step(0n, 'a', { states: [state('r')] }), step(1n, 'b')]);
    for (const method of ['findCheckpoint', 'listSteps'] as const) {
      const leaf = await scene.branch({ id }, 1n);
      await scene.write(leaf, [step(2n, 'c', { states: [state('s')] })]);
      const original = on.store[method] as (...args: unknown[]) => Promise<unknown>;
      const racing = wrappedStore(on.store, {
        [method]: async (...args: unknown[]) => {
          const found = await original.apply(on.store, args);
          await on.store.deleteTrajectory(scene.caller.namespace, leaf.id, 'REFUSE').catch(() => undefined);
          return found;
        },
      });
      const app = on.app({}, racing);
      const { rpc } = on.scene(app, scene.caller.namespace);
      const reading =
        method === 'findCheckpoint'
          ? rpc.getCheckpoint({ trajectoryId: leaf.id, atOrBefore: 1n })
          : rpc.listSteps({ trajectoryId: leaf.id, pageSize: 1 });
      expect((await refusalOf(reading)).reason).toBe('TRAJECTORY_NOT_FOUND');
      await app.close();
    }
  });

  it.each([
    [
      'a page of a list of steps',
      'listSteps',
      ({ rpc }: AppScene, trajectoryId: string) => rpc.listSteps({ trajectoryId, descending: true, pageSize: 3 }),
    ],
    [
      'the latest checkpoint',
      'findCheckpoint',
      ({ rpc }: AppScene, trajectoryId: string) => rpc.getCheckpoint({ trajectoryId }),
    ],
  ] as const)('RD1: %s is refused even if only the last steps are purged yet', async (_what, method, read) => {
    let deleting: () => Promise<unknown> = async () => undefined;
    const original = on.store[method] as (...args: unknown[]) => Promise<unknown>;
    const racing = wrappedStore(on.store, {
      [method]: async (...args: unknown[]) => {
        await deleting();
        return original.apply(on.store, args);
      },
    });
    const app = on.app({}, racing);
    const scene = on.scene(app);
    const { id } = await scene.create();
    await scene.write(
      { id },
      Array.from({ length: 12 }, (_, i) => step(BigInt(i), `${i}`, { states: [state(`${i}`)] })),
    );
    const reading = read(scene, id);
    deleting = async () => {
      deleting = async () => undefined;
      await deleteAndLeave(on.store, scene.caller, id);
      expect(await on.store.purgeDeleted(4)).toBe(true);
    };
    expect((await refusalOf(reading)).reason).toBe('TRAJECTORY_NOT_FOUND');
    await app.close();
  });

  it('B2: maintenance completes a deletion whose caller cancelled, and its followers are notified at once', async () => {
    const scene = on.scene();
    const { app, caller } = scene;
    const { id, ref } = await scene.createWith(['a', 'b', 'c']);
    let told = 0;
    const stop = app.changes.onTrajectory(
      ref,
      () => undefined,
      () => {
        told += 1;
      },
    );
    const left = new AbortController();
    const unsubscribe = on.store.onChange((hint) => {
      if (hint === trajectoryHint(ref.key)) left.abort(new Error('the caller left'));
    });
    const call = appWithin(app, { signal: left.signal });
    await expect(servicesOf(call, caller).deleteTrajectory({ trajectoryId: id })).rejects.toThrow('left');
    unsubscribe();
    stop();
    expect(told).toBeGreaterThan(0);
    const isFree = () =>
      scene.create({ id }).then(
        () => true,
        (error: unknown) => {
          expect((error as { reason?: string }).reason).toBe('TRAJECTORY_EXISTS');
          return false;
        },
      );
    await expect.poll(isFree, { timeout: 20_000 }).toBe(true);
  });

  it('RD4, K-F4: a list of steps of a run or experiment that is deleted between two pages is refused, never incomplete', async () => {
    const here = new RunScene(on.store);
    const { rpc } = on.scene(undefined, here.namespace);
    const run = await here.makeRunWith(['a', 'b', 'c']);
    const listing = (of: { runId: string } | { experimentId: string }, pageToken = '') =>
      rpc.listSteps({ ...of, pageSize: 1, pageToken });
    const [byRun, byExperiment] = [{ runId: run.id }, { experimentId: run.experiment.id }];
    const [first, other] = [await listing(byRun), await listing(byExperiment)];
    expect([first, other].map(({ steps, nextPageToken }) => [steps.length, nextPageToken !== ''])).toEqual([
      [1, true],
      [1, true],
    ]);
    await rpc.deleteRun({ runId: run.id });
    expect((await refusalOf(listing(byRun, first.nextPageToken))).reason).toBe('RUN_NOT_FOUND');
    expect((await listing(byExperiment, other.nextPageToken)).steps).toEqual([]);
    await rpc.deleteExperiment({ experimentId: run.experiment.id });
    expect((await refusalOf(listing(byExperiment))).reason).toBe('EXPERIMENT_NOT_FOUND');
  });

  it.each([0n, 2n, 4n])('RD1, O1: no page goes beyond the missing step %s', async (missing) => {
    const scene = on.scene();
    const { id } = await scene.createWith(['a', 'b', 'c', 'd', 'e']);
    const holed = wrappedStore(on.store, {
      readEncodedSteps: (namespace, tree, lineage, range, view) => {
        const to = range.to < missing ? range.to : missing;
        return on.store.readEncodedSteps(namespace, tree, lineage, { ...range, to }, view);
      },
    });
    const app = on.app({}, holed);
    const reading = on.scene(app, scene.caller.namespace).read({ id });
    const passed: bigint[] = [];
    const refused = refusalOf(
      (async () => {
        for await (const { steps } of reading) for (const one of steps) passed.push(one.stepNumber);
      })(),
    );
    expect((await refused).reason).toBe('TRAJECTORY_DELETED');
    expect(passed).toEqual([0n, 1n, 2n, 3n].slice(0, passed.length));
    await app.close();
  });
});

/** Marks a trajectory as deleted, with a caller that cancels before any row is removed. */
async function deleteAndLeave(store: Store, { namespace }: Caller, id: string): Promise<void> {
  const caller = new AbortController();
  const stop = store.onChange(() => caller.abort(new Error('the caller left')));
  const call = store.within({ signal: caller.signal });
  await expect(call.deleteTrajectory(namespace, id, 'REFUSE')).rejects.toThrow('the caller left');
  stop();
}
