import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { OpenRequest } from '../../src/domain/append.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { Store } from '../../src/store/contract/store.ts';
import type { TrajectoryCreation } from '../../src/store/contract/trajectory.ts';
import { sha256, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { type GivenTrajectory, newTrajectory, refusalOf, type Scene } from './scene.ts';
import { statementsOfWarm } from './statement_count.ts';

/** What a request of CreateTrajectory with this content is converted to. Equal content has an equal digest. */
function creation(fields: GivenTrajectory & { readonly id: string }, requestId: string = randomUUID()) {
  const digest = sha256(JSON.stringify([fields.id, fields.name, fields.taskId, fields.runId]));
  return {
    making: newTrajectory({ ...fields, uid: randomUUID(), createDigest: digest }),
    key: { rpc: 'CreateTrajectory', requestId, requestDigest: digest },
  };
}

function branching(id: string, sourceId: string, stepNumber: bigint): TrajectoryCreation {
  const digest = sha256(JSON.stringify([id, sourceId, `${stepNumber}`]));
  const { name, labels, metadataJson, uid } = newTrajectory({ id });
  return {
    making: { id, uid, name, labels, metadataJson, sourceId, at: { stepNumber }, createDigest: digest },
    key: { rpc: 'BranchTrajectory', requestId: randomUUID(), requestDigest: digest },
  };
}

function open(scene: Scene, create: TrajectoryCreation | undefined, fields: Partial<OpenRequest> = {}, store?: Store) {
  const request = {
    trajectoryId: create?.making.id ?? '',
    uid: undefined,
    writerId: 'w',
    takeOverEpoch: undefined,
    expectedNextStepNumber: undefined,
    ...fields,
  };
  return (store ?? scene.store).openForAppend(scene.caller, request, create);
}

async function reasonOf(call: Promise<unknown>): Promise<string> {
  return (await refusalOf(call)).reason;
}

describeStore('opening a trajectory with create', (on) => {
  it('W1: creates a trajectory that does not exist, and grants it with epoch 1, in one transaction', async () => {
    const scene = on.scene();
    const create = creation({ id: randomUUID(), name: 'new', taskId: 'task', root: wordStep(0n, 'root') });
    const { trajectory, epoch } = await open(scene, create, { writerId: 'first' });
    expect(epoch).toBe(1n);
    expect(trajectory).toMatchObject({ name: 'new', writerId: 'first', writerEpoch: 1n, nextStepNumber: 1n });
    expect(await scene.get(create.making.id)).toEqual(trajectory);
    await scene.append(trajectory, [wordStep(1n, 'a')], { writerEpoch: epoch });
    expect(await scene.words(trajectory)).toEqual(['root', 'a']);
  });

  it('W1, B1: creates a branch; a branch point beyond the end, or a missing source, creates nothing', async () => {
    const scene = on.scene();
    const source = await scene.createWith(['a', 'b', 'c']);
    const create = branching(randomUUID(), source.id, 1n);
    const { trajectory, epoch } = await open(scene, create);
    expect(epoch).toBe(1n);
    expect(trajectory).toMatchObject({ parent: { id: source.id, branchPoint: 1n }, nextStepNumber: 2n });
    await scene.append(trajectory, [wordStep(2n, 'x')], { writerEpoch: epoch });
    expect(await scene.words(trajectory)).toEqual(['a', 'b', 'x']);
    const beyond = branching(randomUUID(), source.id, 3n);
    expect(await reasonOf(open(scene, beyond))).toBe('BRANCH_POINT_BEYOND_END');
    expect(await scene.isThere(beyond.making.id)).toBe(false);
    const orphan = branching(randomUUID(), randomUUID(), 0n);
    expect(await refusalOf(open(scene, orphan))).toMatchObject({
      reason: 'TRAJECTORY_NOT_FOUND',
      metadata: { trajectory_id: 'sourceId' in orphan.making ? orphan.making.sourceId : '' },
    });
  });

  it('W1: a trajectory that the same request created is opened, whatever its request id', async () => {
    const scene = on.scene();
    const id = randomUUID();
    const { trajectory } = await open(scene, creation({ id, name: 'n' }));
    await scene.append(trajectory, [wordStep(0n, 'a')], { writerEpoch: 1n });
    expect(await open(scene, creation({ id, name: 'n' }))).toMatchObject({
      epoch: 2n,
      trajectory: { uid: trajectory.uid, nextStepNumber: 1n },
    });
    expect(await refusalOf(open(scene, creation({ id, name: 'n' }), { writerId: 'x' }))).toMatchObject({
      reason: 'WRITER_FENCED',
      metadata: { writer_id: 'w', writer_epoch: '2' },
    });
    expect(await open(scene, creation({ id, name: 'n' }), { writerId: 'x', takeOverEpoch: 2n })).toMatchObject({
      epoch: 3n,
    });
  });

  it('W1: a trajectory that another request created is TRAJECTORY_EXISTS, also if its request is unknown', async () => {
    const scene = on.scene();
    const id = randomUUID();
    await open(scene, creation({ id, name: 'n' }));
    const before = await scene.get(id);
    expect(await refusalOf(open(scene, creation({ id, name: 'other' })))).toMatchObject({
      reason: 'TRAJECTORY_EXISTS',
      metadata: { trajectory_id: id },
    });
    expect(await scene.get(id)).toEqual(before);
    const unknown = await scene.create();
    expect(await reasonOf(open(scene, creation({ id: unknown.id })))).toBe('TRAJECTORY_EXISTS');
  });

  it('W1, ID1: a trajectory of another creation call is matched by its digest, and without one by its request id', async () => {
    const scene = on.scene();
    const first = creation({ id: randomUUID(), name: 'n' });
    const made = await scene.store.createTrajectory(scene.caller, first.making, first.key);
    expect((await open(scene, creation({ id: made.id, name: 'n' }))).trajectory.uid).toBe(made.uid);

    const other = creation({ id: randomUUID(), name: 'n' });
    const bare = await scene.store.createTrajectory(scene.caller, { ...other.making, createDigest: '' }, other.key);
    expect(await reasonOf(open(scene, creation({ id: bare.id, name: 'n' })))).toBe('TRAJECTORY_EXISTS');
    expect((await open(scene, other)).trajectory.uid).toBe(bare.uid);
  });

  it('W1, ID1: the request id is stored: the creation call returns the trajectory, and no other request can use it', async () => {
    const scene = on.scene();
    const create = creation({ id: randomUUID() });
    const { trajectory } = await open(scene, create);
    expect(await scene.store.createTrajectory(scene.caller, create.making, create.key)).toEqual(trajectory);
    const other = creation({ id: randomUUID() }, create.key.requestId);
    expect(await reasonOf(open(scene, other))).toBe('REQUEST_ID_REUSED');
    expect(await scene.isThere(other.making.id)).toBe(false);
  });

  it('W1: another end than expected creates nothing', async () => {
    const scene = on.scene();
    const create = creation({ id: randomUUID() });
    expect(await reasonOf(open(scene, create, { expectedNextStepNumber: 1n }))).toBe('UNEXPECTED_POSITION');
    expect(await scene.isThere(create.making.id)).toBe(false);
    expect((await open(scene, create, { expectedNextStepNumber: 0n })).epoch).toBe(1n);
  });

  it('W1: of many concurrent opens with one request, one creates, and the others find it', async () => {
    const scene = on.scene();
    for (let round = 0; round < 5; round += 1) {
      const create = creation({ id: randomUUID() });
      const same = await Promise.all(Array.from({ length: 6 }, () => open(scene, create)));
      expect(same.map(({ epoch }) => epoch).sort()).toEqual([1n, 2n, 3n, 4n, 5n, 6n]);
      expect(new Set(same.map(({ trajectory }) => trajectory.uid)).size).toBe(1);
      const rivals = creation({ id: randomUUID() });
      const results = await Promise.allSettled(
        Array.from({ length: 6 }, (_, i) => open(scene, rivals, { writerId: `w${i}` })),
      );
      expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    }
  });

  it('W1, B3: is not created again after it was deleted, nor after a restart; a creation call creates it', async () => {
    const scene = on.scene();
    const create = creation({ id: randomUUID() });
    const { trajectory } = await open(scene, create);
    await scene.delete(trajectory);
    const again = creation({ id: trajectory.id, name: 'another' });
    for (const each of [create, again]) expect(await reasonOf(open(scene, each))).toBe('TRAJECTORY_NOT_FOUND');
    await on.reopen();
    await on.store.expireRequests(-1, 1000);
    expect(await reasonOf(open(scene, create, {}, on.store))).toBe('TRAJECTORY_NOT_FOUND');
    expect((await on.store.createTrajectory(scene.caller, again.making)).uid).not.toBe(trajectory.uid);
    expect((await open(scene, again, {}, on.store)).trajectory.name).toBe('another');
    await on.store.deleteTrajectory(scene.namespace, trajectory.id, 'REFUSE');
    expect(await reasonOf(open(scene, again, {}, on.store))).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('W1, B3: the id of a deleted trajectory is kept for 400 days, then it expires in limited batches', async () => {
    const scene = on.scene();
    const creations = await Promise.all(
      Array.from({ length: 4 }, async () => {
        const create = creation({ id: randomUUID() });
        await scene.delete((await open(scene, create)).trajectory);
        return create;
      }),
    );
    const age = (days: number, of: string) =>
      on.sql.rows(`update deleted_trajectories
        set delete_time = ${on.sql.earlier('delete_time', days * 86_400)} where namespace = '${scene.namespace}' ${of}`);
    const last = creations.at(-1)!;
    await age(399, '');
    expect(await on.store.expireRequests(7, 1000)).toBe(0);
    await age(2, `and id <> '${last.making.id}'`);
    expect(await on.store.expireRequests(7, 2)).toBe(2);
    expect(await on.store.expireRequests(7, 2)).toBe(1);
    expect(await reasonOf(open(scene, last))).toBe('TRAJECTORY_NOT_FOUND');
    const { making } = creations[0]!;
    expect((await open(scene, creation({ id: making.id }))).trajectory.id).toBe(making.id);
  });

  it('W1, B2: is TRAJECTORY_NOT_FOUND while it is hidden for its branches', async () => {
    const scene = on.scene();
    const create = creation({ id: randomUUID(), root: wordStep(0n, 'a') });
    const { trajectory } = await open(scene, create);
    await scene.branch(trajectory, 0n);
    await scene.delete(trajectory, 'KEEP_SHARED');
    expect(await reasonOf(open(scene, create))).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('W1: a new trajectory has its first durable step with fewer statements', async () => {
    const scene = on.scene();
    const first = (trajectory: Trajectory) => scene.append(trajectory, [wordStep(0n, 'a')], { writerEpoch: 1n });
    const apart = async () => {
      const { making, key } = creation({ id: randomUUID() });
      const made = await scene.store.createTrajectory(scene.caller, making, key);
      await scene.open(made);
      await first(made);
    };
    const together = async () => {
      const { trajectory } = await open(scene, creation({ id: randomUUID() }));
      await first(trajectory);
    };
    const counts = [await statementsOfWarm(on.engine, apart), await statementsOfWarm(on.engine, together)];
    // With begin and commit. The first append after an open reads no rows: on Postgres it is one statement.
    expect(counts).toEqual(on.engine === 'postgres' ? [17, 12] : [21, 16]);
  });

  it('W1: ids that were deleted in one namespace can be created in another', async () => {
    const [scene, other] = [on.scene(), on.scene()];
    const create = creation({ id: randomUUID() });
    await scene.delete((await open(scene, create)).trajectory);
    expect((await open(other, create)).epoch).toBe(1n);
  });

  it('W1, ID1: of a deleted trajectory that a creation call created, only the request id is known', async () => {
    const scene = on.scene();
    const id = randomUUID();
    const create = creation({ id });
    await scene.delete(await scene.store.createTrajectory(scene.caller, create.making, create.key));
    expect(await reasonOf(open(scene, create))).toBe('TRAJECTORY_NOT_FOUND');
    expect((await open(scene, creation({ id }))).epoch).toBe(1n);
  });
});
