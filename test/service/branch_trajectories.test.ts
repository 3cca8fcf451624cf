import { expect, it } from 'vitest';
import { OnBranches } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { RunScene } from '../store/run_scene.ts';
import { type GivenTrajectory, refusalOf } from '../store/scene.ts';
import { makeStep } from '../support/steps.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, describeApp, step } from './on_app.ts';

const REQUEST = { taskId: 'from', branchTaskId: 'to', requestId: 'request' };

/** A trajectory of the task with one step. */
function source(scene: AppScene, fields: GivenTrajectory = {}): Promise<Trajectory> {
  return scene.create({ taskId: 'from', root: makeStep(0n), ...fields });
}

/** The trajectories of a task, oldest first. */
function trajectories(scene: AppScene, taskId = 'to'): Promise<Trajectory[]> {
  const page = { limit: 9999, after: undefined, sort: { by: 'CREATION', ascending: true } } as const;
  return scene.app.store.listTrajectories(scene.caller.namespace, { taskId }, page);
}

describeApp('BranchTrajectories', (on) => {
  /** A scene whose store calls `before` before each group of branches. */
  function withGroups(before: (size: number) => Promise<unknown>): AppScene {
    const replaced: Store['branchTrajectories'] = async (caller, branches, key) => {
      await before(branches.length);
      return on.store.branchTrajectories(caller, branches, key);
    };
    return on.scene(on.app({}, wrappedStore(on.store, { branchTrajectories: replaced })));
  }

  it('B7: branches every trajectory of a task at its end, in order of creation', async () => {
    const scene = on.scene();
    const one = await scene.createWith(['a', 'b', 'c'], { taskId: 'from' });
    await scene.create({ taskId: 'from', name: 'without steps' });
    const two = await scene.createWith(['d'], { taskId: 'from' });
    await scene.createWith(['e'], { taskId: 'another' });
    expect((await scene.rpc.branchTrajectories(REQUEST)).count).toBe(2n);
    const made = await trajectories(scene);
    expect(made).toMatchObject([
      { parent: { id: one.id, branchPoint: 2n }, nextStepNumber: 3n, status: 'RUNNING', writerEpoch: 0n },
      { parent: { id: two.id, branchPoint: 0n }, nextStepNumber: 1n },
    ]);
    // What is appended later is in one of them only.
    await scene.write(one, [step(3n, 'later')]);
    await scene.write(made[0]!, [step(3n, 'own')]);
    expect(await scene.words(made[0]!)).toEqual(['a', 'b', 'c', 'own']);
    expect(await scene.words(one)).toEqual(['a', 'b', 'c', 'later']);
    expect(await scene.words(made[1]!)).toEqual(['d']);
  });

  it('B7: a branch has name, labels, metadata, scored metrics and run of its source', async () => {
    const scene = on.scene();
    const run = await new RunScene(on.store, scene.caller.namespace).makeRun();
    const labels = new Map([['a', '1']]);
    const fields = { name: 'n', labels, metadataJson: ' [1.0]', scoredMetrics: ['m'], runId: run.id };
    await source(scene, fields);
    await scene.rpc.branchTrajectories(REQUEST);
    expect(await trajectories(scene)).toMatchObject([fields]);
  });

  it('B7: given name, labels and fields of metadata replace those of each source', async () => {
    const scene = on.scene();
    const given = { name: 'given', labels: { b: 'new', c: 'new' }, metadataJson: '{"b":{"x":2.0},"c":null}' };
    const deep = `{"a":${'['.repeat(100)}${']'.repeat(100)}}`;
    const cases = [
      ['{"a":1.0,"b":{"x":1,"y":1}}', '{"a":1.0,"b":{"x":2.0,"y":1},"c":null}'],
      ['{"b":[1],"__proto__":1}', '{"b":{"x":2.0},"__proto__":1,"c":null}'],
      ['', given.metadataJson],
      ['[1]', given.metadataJson],
      [deep, given.metadataJson],
    ] as const;
    for (const [metadataJson] of cases) {
      const labels = new Map(Object.entries({ a: 'old', b: 'old' }));
      await source(scene, { name: 'source', labels, metadataJson });
    }
    await scene.rpc.branchTrajectories({ ...REQUEST, ...given });
    const labels = new Map(Object.entries({ a: 'old', b: 'new', c: 'new' }));
    const expected = cases.map(([, metadataJson]) => ({ name: 'given', labels, metadataJson }));
    expect(await trajectories(scene)).toMatchObject(expected);
  });

  it('B7: too many labels, and too much metadata, together with those of a source are refused', async () => {
    const scene = on.scene();
    const labels = new Map(Array.from({ length: 64 }, (_, i) => [`${i}`, '']));
    const { id } = await source(scene, { labels, metadataJson: JSON.stringify({ a: 'x'.repeat(512 * 1024 - 8) }) });
    const refused = async (fields: object) => {
      const { reason, violations } = await refusalOf(scene.rpc.branchTrajectories({ ...REQUEST, ...fields }));
      return [reason, violations[0]?.field, violations[0]?.description.includes(id)];
    };
    expect(await refused({ labels: { another: '' } })).toEqual(['INVALID_REQUEST', 'labels', true]);
    expect(await refused({ metadataJson: '{"b":1}' })).toEqual(['INVALID_REQUEST', 'metadata_json', true]);
    expect(await refused({ metadataJson: '[]' })).toEqual(['INVALID_REQUEST', 'metadata_json', false]);
    expect(await refused({ branchTaskId: 'from' })).toEqual(['INVALID_REQUEST', 'branch_task_id', false]);
    expect(await trajectories(scene)).toEqual([]);
    expect(await scene.rpc.branchTrajectories({ ...REQUEST, labels: { 0: 'replaced' } })).toMatchObject({ count: 1n });
  });

  it('ID1: a repeated request creates only what it has not created, whatever became of its branches', async () => {
    const scene = on.scene();
    const [one, two] = [await source(scene), await source(scene)];
    await source(scene);
    await scene.rpc.branchTrajectories(REQUEST);
    const made = await trajectories(scene);
    await scene.write(one, [step(1n, 'later')]);
    await scene.write(made[0]!, [step(1n, 'own')], { status: 'COMPLETED', message: '' });
    expect((await scene.rpc.branchTrajectories(REQUEST)).count).toBe(3n);
    expect((await trajectories(scene)).map(({ id }) => id)).toEqual(made.map(({ id }) => id));
    // A new source has a new branch; a deleted branch, and one of a deleted source, are not created again.
    await source(scene);
    const onBranches = OnBranches.KEEP_SHARED;
    for (const { id } of [made[2]!, two]) await scene.rpc.deleteTrajectory({ trajectoryId: id, onBranches });
    expect((await scene.rpc.branchTrajectories(REQUEST)).count).toBe(2n);
    expect(await trajectories(scene)).toMatchObject([{ id: made[0]!.id }, { id: made[1]!.id }, {}]);
    // Another request has its own branches.
    expect((await scene.rpc.branchTrajectories({ ...REQUEST, requestId: 'other' })).count).toBe(3n);
    expect(await trajectories(scene)).toHaveLength(6);
  });

  it('ID1: a branch that is deleted, but kept for its own branches, is not created again', async () => {
    const scene = on.scene();
    await source(scene);
    await scene.rpc.branchTrajectories(REQUEST);
    const [made] = await trajectories(scene);
    await scene.write(made!, [step(1n, 'own')]);
    await scene.branch(made!, 1n);
    await scene.rpc.deleteTrajectory({ trajectoryId: made!.id, onBranches: OnBranches.KEEP_SHARED });
    expect((await scene.rpc.branchTrajectories(REQUEST)).count).toBe(0n);
  });

  it('ID1: another request under the same request id is refused, even if it would branch nothing', async () => {
    const scene = on.scene();
    await source(scene);
    await source(scene, { taskId: 'another' });
    await scene.rpc.branchTrajectories(REQUEST);
    for (const other of [{ taskId: 'another' }, { taskId: 'unknown' }, { branchTaskId: 'another' }, { name: 'n' }]) {
      const error = await refusalOf(scene.rpc.branchTrajectories({ ...REQUEST, ...other }));
      expect(error).toMatchObject({ reason: 'REQUEST_ID_REUSED', metadata: { request_id: 'request' } });
    }
    expect(await trajectories(scene, 'another')).toHaveLength(1);
  });

  it('ID1: concurrent calls of one request create each branch once', async () => {
    const scene = on.scene();
    for (let i = 0; i < 20; i += 1) await source(scene);
    const calls = Array.from({ length: 4 }, () => scene.rpc.branchTrajectories(REQUEST));
    expect((await Promise.all(calls)).map(({ count }) => count)).toEqual([20n, 20n, 20n, 20n]);
    expect(await trajectories(scene)).toHaveLength(20);
  });

  it('B7: thousands of trajectories are branched in groups; a repeated call creates what a failed one did not', async () => {
    const sizes: number[] = [];
    const scene = withGroups(async (size) => {
      sizes.push(size);
      if (sizes.length === 3) throw new Error('lost');
    });
    for (let i = 0; i < 1020; i += 1) await source(scene);
    await expect(scene.rpc.branchTrajectories(REQUEST)).rejects.toThrow('lost');
    const made = await trajectories(scene);
    expect(made).toHaveLength(32);
    expect((await scene.rpc.branchTrajectories(REQUEST)).count).toBe(1020n);
    expect(sizes.slice(3)).toEqual([...Array(63).fill(16), 12]);
    const all = await trajectories(scene);
    expect(all.map(({ parent }) => parent?.id)).toEqual((await trajectories(scene, 'from')).map(({ id }) => id));
    expect(all.slice(0, 32)).toEqual(made);
    await scene.app.close();
  });

  it('B7: a task without trajectories is branched to nothing, and tasks of other namespaces are not seen', async () => {
    const [scene, stranger] = [on.scene(), on.scene()];
    await source(scene);
    await source(stranger, { taskId: 'another' });
    expect((await stranger.rpc.branchTrajectories(REQUEST)).count).toBe(0n);
    expect(await trajectories(stranger)).toEqual([]);
    expect((await scene.rpc.branchTrajectories(REQUEST)).count).toBe(1n);
  });

  it.each(['REFUSE', 'KEEP_SHARED'] as const)(
    'B7: a trajectory that is deleted meanwhile (%s) is left out, and one with its id is not branched',
    async (onBranches) => {
      let deleting = async (): Promise<unknown> => undefined;
      const scene = withGroups(() => deleting());
      const [one, two, three] = [await source(scene), await source(scene), await source(scene)];
      if (onBranches === 'KEEP_SHARED')
        await scene.rpc.branchTrajectory({ trajectoryId: one.id, stepNumber: 0n, taskId: 'else' });
      deleting = async () => {
        await on.store.deleteTrajectory(scene.caller.namespace, one.id, onBranches);
        await on.store.deleteTrajectory(scene.caller.namespace, two.id, 'REFUSE');
        await source(scene, { id: two.id });
      };
      expect((await scene.rpc.branchTrajectories(REQUEST)).count).toBe(1n);
      expect(await trajectories(scene)).toMatchObject([{ parent: { id: three.id } }]);
      await scene.app.close();
    },
  );
});
