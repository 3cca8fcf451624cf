import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { makeStep, newState, sha256, stateRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { refusalOf } from './scene.ts';

function key(fields: { rpc?: string; requestId?: string; request?: string } = {}) {
  const { rpc = 'CreateTrajectory', requestId = randomUUID(), request = 'r' } = fields;
  return { rpc, requestId, requestDigest: sha256(request) };
}

describeStore('idempotency keys', (on) => {
  it('ID1, I2: a repeated request returns the trajectory created first, in its current state', async () => {
    const scene = on.scene();
    const used = key();
    const made = await scene.create({ name: 'first' }, used);
    await scene.appendWords(made, ['a']);
    // If the server chooses ids, a retry contains different ones.
    const again = await scene.create({ name: 'first' }, used);
    expect(again).toEqual(await scene.get(made.id));
    expect(again.nextStepNumber).toBe(1n);
    expect(await scene.create({ id: made.id, name: 'first' }, used)).toEqual(again);
  });

  it('ID1: a repeated request to branch returns the same branch', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const used = key({ rpc: 'BranchTrajectory' });
    const made = await scene.branch(root, 0n, {}, used);
    expect(await scene.branch(root, 0n, {}, used)).toEqual(made);
    const branches = await scene.store.listTrajectories(
      scene.namespace,
      { parentId: root.id },
      { limit: 9, after: undefined },
    );
    expect(branches).toHaveLength(1);
  });

  it('ID1: a different request under the same key is refused and creates nothing', async () => {
    const scene = on.scene();
    const used = key({ request: 'one' });
    await scene.create({}, used);
    const id = randomUUID();
    const error = await refusalOf(scene.create({ id }, { ...used, requestDigest: sha256('two') }));
    expect(error).toMatchObject({ reason: 'REQUEST_ID_REUSED', metadata: { request_id: used.requestId } });
    expect(await scene.isThere(id)).toBe(false);
  });

  it('ID1: keys are scoped by namespace and RPC, and are case-sensitive', async () => {
    const scene = on.scene();
    const used = key({ requestId: 'abc' });
    const made = await scene.create({}, used);
    const others = [
      await scene.create({}, { ...used, rpc: 'BranchTrajectory' }),
      await scene.create({}, { ...used, requestId: 'ABC' }),
      await on.scene().create({}, used),
    ];
    expect(new Set([made.id, ...others.map(({ id }) => id)]).size).toBe(4);
  });

  it('ID1: many concurrent requests with one key all get the same trajectory', async () => {
    const scene = on.scene();
    const used = key();
    const made = await Promise.all(Array.from({ length: 10 }, () => scene.create({}, used)));
    expect(new Set(made.map(({ id }) => id)).size).toBe(1);
    expect(await scene.store.listTrajectories(scene.namespace, {}, { limit: 9, after: undefined })).toHaveLength(1);
  });

  it('ID1: many concurrent requests with one key and one id all get the same trajectory', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a']);
    for (let round = 0; round < 20; round += 1) {
      const [created, branched] = [randomUUID(), randomUUID()];
      const [forCreate, forBranch] = [key(), key({ rpc: 'BranchTrajectory' })];
      const made = await Promise.all([
        ...Array.from({ length: 5 }, () => scene.create({ id: created }, forCreate)),
        ...Array.from({ length: 5 }, () => scene.branch(root, 0n, { id: branched }, forBranch)),
      ]);
      expect(new Set(made.map(({ uid }) => uid)).size).toBe(2);
    }
  });

  it('ID1: of many different concurrent requests under one key, one creates a trajectory', async () => {
    const scene = on.scene();
    const used = key();
    const results = await Promise.allSettled(
      Array.from({ length: 8 }, (_, i) => scene.create({}, { ...used, requestDigest: sha256(`${i}`) })),
    );
    const refused = results.filter((each) => each.status === 'rejected');
    expect(refused).toHaveLength(7);
    for (const each of refused) expect(each.reason).toMatchObject({ reason: 'REQUEST_ID_REUSED' });
  });

  it('ID1: if the created trajectory was deleted, a repetition is NOT_FOUND, even if its id was created again', async () => {
    const scene = on.scene();
    const used = key();
    const made = await scene.create({}, used);
    await scene.delete(made);
    const error = await refusalOf(scene.create({ id: made.id }, used));
    expect(error.reason).toBe('TRAJECTORY_NOT_FOUND');
    expect(error.message).toContain(used.requestId);
    // The metadata contain an id, or nothing.
    expect(error.metadata.trajectory_id ?? made.id).toMatch(/^[0-9a-f-]{36}$/);
    await scene.create({ id: made.id });
    expect((await refusalOf(scene.create({ id: made.id }, used))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('ID1: if the created trajectory was hidden, a repetition is NOT_FOUND', async () => {
    const scene = on.scene();
    const used = key();
    const made = await scene.create({}, used);
    await scene.appendWords(made, ['a']);
    await scene.branch(made, 0n);
    await scene.delete(made, 'KEEP_SHARED');
    expect((await refusalOf(scene.create({}, used))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('ID1, D3: a refused request stores no key, so it can be repeated once it can succeed', async () => {
    const scene = on.scene();
    const used = key();
    const state = newState('later');
    const root = makeStep(0n, { states: [stateRef(state)] });
    expect((await refusalOf(scene.create({ root }, used))).reason).toBe('STATE_NOT_FOUND');
    const taken = await scene.create();
    expect((await refusalOf(scene.create({ id: taken.id }, used))).reason).toBe('TRAJECTORY_EXISTS');
    expect(await scene.create({ root, states: [state] }, used)).toMatchObject({ nextStepNumber: 1n });
  });

  it('ID1: keys are kept for the configured days, then expire in limited batches', async () => {
    const scene = on.scene();
    const keys = Array.from({ length: 5 }, () => key());
    for (const each of keys) await scene.create({}, each);
    await on.store.expireRequests(7, 1000);
    const old = keys[0] as (typeof keys)[number];
    expect((await refusalOf(scene.create({}, { ...old, requestDigest: sha256('x') }))).reason).toBe(
      'REQUEST_ID_REUSED',
    );
    const of = `where namespace = '${scene.namespace}'`;
    const eightDays = on.engine === 'sqlite' ? `'2020-01-01T00:00:00.000000Z'` : `now() - interval '8 days'`;
    await on.sql.rows(`update requests set create_time = ${eightDays} ${of} and request_id <> '${old.requestId}'`);
    expect(await on.store.expireRequests(7, 3)).toBe(3);
    expect(await on.store.expireRequests(7, 1000)).toBe(1);
    expect(await on.store.expireRequests(7, 1000)).toBe(0);
    expect(await on.sql.rows(`select request_id from requests ${of}`)).toEqual([{ request_id: old.requestId }]);
    const again = keys[1] as (typeof keys)[number];
    expect(await scene.create({}, { ...again, requestDigest: sha256('new') })).toBeDefined();
  });
});
