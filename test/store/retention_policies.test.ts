import { randomUUID } from 'node:crypto';
import { beforeEach, expect, it } from 'vitest';
import { NOTHING } from '../../src/domain/retention.ts';
import type { DuePolicy, StoredPolicy } from '../../src/domain/retention_policies.ts';
import { HOUR, newPolicy, TRAJECTORIES } from '../support/retention_policies.ts';
import { describeStore } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { refusalOf, type Scene } from './scene.ts';
import { expectVerified } from './verified.ts';

const MINUTE = 60_000_000_000n;
const LEASE_MS = 60_000;
const ALL = { limit: 1000, after: undefined };

describeStore('retention policies', (on) => {
  // Policies of all namespaces are due for whoever asks.
  beforeEach(() => on.sql.rows('delete from retention_policies where true'));

  const listed = (scene: Scene) => scene.store.listRetentionPolicies(scene.namespace, ALL);
  const one = async (scene: Scene): Promise<StoredPolicy> => (await listed(scene))[0]!;
  const claim = () => on.store.claimDuePolicy(randomUUID(), LEASE_MS);
  const claimed = async (): Promise<DuePolicy> => {
    const due = await claim();
    if (due === undefined) throw new Error('no policy is due');
    return due;
  };
  /** Moves a time of all policies back. */
  const earlier = (column: 'due_time' | 'lease_end_time', seconds: number) =>
    on.sql.rows(`update retention_policies set ${column} = ${on.sql.earlier(column, seconds)} where true`);
  const reasonOf = async (call: Promise<unknown>) => (await refusalOf(call)).reason;

  it('S15: a policy is read as it was set, in byte order of the names, by pages, and is found in its namespace only', async () => {
    const scene = new RunScene(on.store);
    const experiment = await scene.experiment();
    const run = await scene.makeRun({ experiment: { id: experiment.id } });
    const labels = new Map([
      ['b', '2'],
      ['a', 'é'],
    ]);
    const trajectories = { ...TRAJECTORIES, labels, olderThan: 7n * MINUTE + 1n, onBranches: 'CASCADE' as const };
    const given = [
      newPolicy('Z'),
      newPolicy('a', { runId: run.id, keepLast: 3, keepEvery: 2n ** 62n, mediaTypes: ['image/png'] }),
      { name: 'b/x', intervalMs: 60_000, policy: { runId: undefined, experimentId: experiment.id, trajectories } },
    ];
    for (const each of [...given].reverse()) await scene.store.setRetentionPolicy(scene.namespace, each);
    expect(await listed(scene)).toMatchObject(given);
    expect((await listed(scene)).map(({ last }) => last)).toEqual([undefined, undefined, undefined]);
    const page = await scene.store.listRetentionPolicies(scene.namespace, { limit: 1, after: 'Z' });
    expect(page.map(({ name }) => name)).toEqual(['a']);
    const other = on.scene();
    expect(await listed(other)).toEqual([]);
    expect(await reasonOf(on.store.deleteRetentionPolicy(other.namespace, 'a'))).toBe('RETENTION_POLICY_NOT_FOUND');
    const foreign = on.store.setRetentionPolicy(other.namespace, newPolicy('a', { runId: run.id }));
    expect(await reasonOf(foreign)).toBe('RUN_NOT_FOUND');
    await on.store.deleteRetentionPolicy(scene.namespace, 'a');
    expect((await listed(scene)).map(({ name }) => name)).toEqual(['Z', 'b/x']);
    await expectVerified(on.store);
  });

  it('S15: the same policy again changes nothing; a changed one is due at once, and keeps its last execution', async () => {
    const scene = on.scene();
    const set = (policy = newPolicy('p')) => scene.store.setRetentionPolicy(scene.namespace, policy);
    const first = await set();
    expect(first.dueTime).toBe(first.createTime);
    const due = await claimed();
    await on.store.endPolicyExecution(due, { removed: { ...NOTHING, states: 3n }, error: undefined });
    const applied = await one(scene);
    expect(await set()).toEqual(applied);
    const changed = await set({ ...newPolicy('p'), intervalMs: 2 * HOUR });
    expect(changed).toMatchObject({ createTime: first.createTime, last: applied.last, intervalMs: 2 * HOUR });
    expect(changed.dueTime).toBe(changed.updateTime);
    expect(changed.updateTime).toBeGreaterThan(first.updateTime);
    expect(await claim()).toMatchObject({ name: 'p' });
  });

  it('S15: a due policy is claimed by one caller at a time, that which is due longest first, until its lease ends', async () => {
    const scene = on.scene();
    await scene.store.setRetentionPolicy(scene.namespace, newPolicy('second'));
    await scene.store.setRetentionPolicy(scene.namespace, newPolicy('third', { keepLast: 2 }));
    await on.sql.rows(
      `update retention_policies set due_time = ${on.sql.earlier('due_time', 60)} where name = 'second'`,
    );
    const found = await Promise.all([claim(), claim(), claim()]);
    expect(found.flatMap((each) => each?.name ?? []).sort()).toEqual(['second', 'third']);
    expect(await claim()).toBeUndefined();
    await earlier('lease_end_time', 120);
    const [again, next] = [await claimed(), await claimed()];
    expect([again.name, next.name]).toEqual(['second', 'third']);
    expect(next.policy).toMatchObject({ states: { keepLast: 2 } });
    expect(await claim()).toBeUndefined();
    // The former execution of a policy has lost its lease.
    const former = found.find((each) => each?.name === 'second')!;
    expect(await on.store.renewPolicyLease(former, LEASE_MS)).toBe(false);
    await on.store.endPolicyExecution(former, { removed: NOTHING, error: undefined });
    expect((await listed(scene)).map(({ last }) => last)).toEqual([undefined, undefined]);
    expect(await on.store.renewPolicyLease(again, LEASE_MS)).toBe(true);
  });

  it('S15: an execution is recorded, and the policy is due an interval after its start', async () => {
    const scene = on.scene();
    await scene.store.setRetentionPolicy(scene.namespace, newPolicy('p'));
    const due = await claimed();
    expect(due).toMatchObject({ namespace: scene.namespace, name: 'p' });
    const removed = { trajectories: 1n, steps: 2n, states: 3n, logicalBytes: 2n ** 60n, storedBytes: 5n };
    await on.store.endPolicyExecution(due, { removed, error: undefined });
    const { last, dueTime } = await one(scene);
    expect(last).toMatchObject({ startTime: due.startTime, removed, error: undefined });
    expect(last!.endTime).toBeGreaterThanOrEqual(due.startTime);
    expect(dueTime - due.startTime).toBe(60n * MINUTE);
    expect(await claim()).toBeUndefined();
    await earlier('due_time', 3600);
    expect(await claim()).toMatchObject({ name: 'p' });
  });

  it('S15: a failed execution is repeated after ten minutes, or after a shorter interval', async () => {
    const scene = on.scene();
    const error = { reason: 'STORAGE_FULL', message: 'full' } as const;
    for (const [intervalMs, minutes] of [
      [HOUR, 10n],
      [5 * 60_000, 5n],
    ] as const) {
      await scene.store.setRetentionPolicy(scene.namespace, { ...newPolicy('p'), intervalMs });
      await on.store.endPolicyExecution(await claimed(), { removed: { ...NOTHING, states: 1n }, error });
      const { last, dueTime } = await one(scene);
      expect(last).toMatchObject({ error, removed: { states: 1n } });
      expect(dueTime - last!.endTime).toBe(minutes * MINUTE);
    }
  });

  it('S15: an execution that stops leaves the policy due, for any other instance at once', async () => {
    const scene = on.scene();
    await scene.store.setRetentionPolicy(scene.namespace, newPolicy('p'));
    await on.store.endPolicyExecution(await claimed(), undefined);
    expect((await one(scene)).last).toBeUndefined();
    expect(await claim()).toMatchObject({ name: 'p' });
  });

  it('S15: an execution loses its lease when its policy is changed, deleted, or created again', async () => {
    const scene = on.scene();
    const { store, namespace } = scene;
    const expectLost = async (due: DuePolicy) => {
      expect(await store.renewPolicyLease(due, LEASE_MS)).toBe(false);
      await store.endPolicyExecution(due, { removed: NOTHING, error: undefined });
      expect((await listed(scene)).map(({ last }) => last)).toEqual((await listed(scene)).map(() => undefined));
    };
    await store.setRetentionPolicy(namespace, newPolicy('p'));
    const before = await claimed();
    await store.setRetentionPolicy(namespace, newPolicy('p', { keepLast: 1 }));
    await expectLost(before);
    const changed = await claimed();
    await store.deleteRetentionPolicy(namespace, 'p');
    await expectLost(changed);
    await store.setRetentionPolicy(namespace, newPolicy('p'));
    await expectLost(changed);
    expect(await claim()).toMatchObject({ name: 'p' });
  });

  it('S15, B4: the policies of a run or an experiment go with it, and others stay', async () => {
    const scene = new RunScene(on.store);
    const { store, namespace } = scene;
    const experiment = await scene.experiment();
    const inside = await scene.makeRunWith(['a'], { experiment: { id: experiment.id } });
    const alone = await scene.makeRunWith(['a']);
    const branch = (await scene.branchOff(alone, 0n)).run;
    await store.setRetentionPolicy(namespace, newPolicy('all'));
    await store.setRetentionPolicy(namespace, newPolicy('experiment', { experimentId: experiment.id }));
    for (const [name, { id }] of Object.entries({ inside, alone, branch }))
      await store.setRetentionPolicy(namespace, newPolicy(name, { runId: id }));
    await store.deleteRun(namespace, alone.id, 'CASCADE');
    expect((await listed(scene)).map(({ name }) => name)).toEqual(['all', 'experiment', 'inside']);
    await store.deleteExperiment(namespace, experiment.id, 'REFUSE');
    expect((await listed(scene)).map(({ name }) => name)).toEqual(['all']);
    expect(await reasonOf(store.setRetentionPolicy(namespace, newPolicy('p', { runId: alone.id })))).toBe(
      'RUN_NOT_FOUND',
    );
    const gone = newPolicy('p', { experimentId: experiment.id });
    expect(await reasonOf(store.setRetentionPolicy(namespace, gone))).toBe('EXPERIMENT_NOT_FOUND');
    while (await store.purgeDeleted(500));
    await expectVerified(store);
  });

  it('S15: a policy that is set while its run is deleted either fails or goes with the run', async () => {
    const scene = new RunScene(on.store);
    const { store, namespace } = scene;
    for (let i = 0; i < 10; i += 1) {
      const { id } = await scene.makeRunWith(['a']);
      const setting = ['p', 'q'].map((name) =>
        store.setRetentionPolicy(namespace, newPolicy(name, { runId: id })).catch((error: unknown) => error),
      );
      await Promise.all([...setting, store.deleteRun(namespace, id, 'REFUSE')]);
      expect(await listed(scene)).toEqual([]);
    }
  });

  it('S15: of two callers that set one policy at once, both succeed, and one of their policies is stored', async () => {
    const scene = on.scene();
    const all = [1, 2, 3, 4].map((keepLast) => newPolicy('p', { keepLast }));
    await Promise.all(all.map((each) => scene.store.setRetentionPolicy(scene.namespace, each)));
    expect(await listed(scene)).toHaveLength(1);
    expect(all).toContainEqual(expect.objectContaining({ policy: (await one(scene)).policy }));
  });
});
