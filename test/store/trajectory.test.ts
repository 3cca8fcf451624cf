import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { TrajectoryFilter } from '../../src/store/contract/trajectory.ts';
import { makeStep, newState, sha256, stateRef, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { refusalOf, type Scene } from './scene.ts';

const ODD = 'e\u0301 \u00e9 🌊 中文 \u202e\u2028 "\\\'\n\t $1 ?1 :a %_ \\u0000';

function list(scene: Scene, filter: TrajectoryFilter = {}, limit = 1000, after?: bigint): Promise<Trajectory[]> {
  return scene.store.listTrajectories(scene.namespace, filter, { limit, after });
}

async function ids(scene: Scene, filter: TrajectoryFilter = {}): Promise<string[]> {
  return (await list(scene, filter)).map(({ id }) => id);
}

describeStore('creating and getting trajectories', (on) => {
  it('L1: a new trajectory is RUNNING, empty, without a writer, its own root, and has the values of the request', async () => {
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

  it('times are the current time of the database', async () => {
    const scene = on.scene();
    const { createTime, updateTime } = await scene.create();
    expect(createTime).toBe(updateTime);
    expect(Math.abs(Number(createTime / 1_000_000n) - Date.now())).toBeLessThan(60_000);
  });

  it('a root step is stored in the same transaction, with its state', async () => {
    const scene = on.scene();
    const state = newState('reset');
    const root = makeStep(0n, { states: [stateRef(state)], reward: 2, infoJson: '{"seed":1}' });
    const made = await scene.create({ root, states: [state] });
    expect(made).toMatchObject({ nextStepNumber: 1n, rewardSum: 2 });
    const [step] = await scene.steps(made);
    expect(step).toMatchObject({
      owner: { key: made.ref.key, id: made.id },
      step: { stepNumber: 0n, infoJson: '{"seed":1}', writerEpoch: 0n, rewardSum: 2, commitTime: made.createTime },
    });
    expect(step?.step.states).toEqual([stateRef(state)]);
  });

  it('W9: a root that refers to an unknown state creates nothing', async () => {
    const scene = on.scene();
    const id = randomUUID();
    const digest = sha256('nowhere');
    const root = makeStep(0n, { states: [{ name: 'env', digest, mediaType: '', size: 0 }] });
    expect(await refusalOf(scene.create({ id, root }))).toMatchObject({
      reason: 'STATE_NOT_FOUND',
      metadata: { digest },
    });
    expect(await scene.isThere(id)).toBe(false);
    expect(await scene.create({ id })).toMatchObject({ id });
  });

  it('an id in use is refused, and its trajectory is unchanged', async () => {
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

  it('of many concurrent creations with one id one succeeds', async () => {
    const scene = on.scene();
    const id = randomUUID();
    const results = await Promise.allSettled(Array.from({ length: 8 }, (_, i) => scene.create({ id, name: `${i}` })));
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    for (const each of results)
      if (each.status === 'rejected') expect(each.reason).toMatchObject({ reason: 'TRAJECTORY_EXISTS' });
  });

  it('an unknown id is undefined', async () => {
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

describeStore('updating trajectories', (on) => {
  it('FM7: set fields change, unset fields stay; labels are replaced, metrics merged by key', async () => {
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

  it('metrics set by many concurrent updates are all stored', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const keys = Array.from({ length: 20 }, (_, i) => `m${i}`);
    await Promise.all(
      keys.map((key, i) => scene.store.updateTrajectory(scene.namespace, made.id, { metrics: new Map([[key, i]]) })),
    );
    expect((await scene.get(made.id)).metrics).toEqual(new Map(keys.map((key, i) => [key, i])));
  });

  it('256 metrics are accepted, one more is refused and changes nothing', async () => {
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

  it('a sealed trajectory can be updated; an unknown one cannot', async () => {
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

  it('an update does not undo a concurrent append', async () => {
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
