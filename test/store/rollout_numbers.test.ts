import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { NewRollout } from '../../src/store/contract/rollout.ts';
import { sha256 } from '../support/steps.ts';
import { describeStore, describeStoreOn } from './on_store.ts';
import { newRollout, RolloutScene } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows, waitingForLocks } from './sql.ts';

const UNNUMBERED: Partial<NewRollout> = { number: undefined };
const LARGEST = 2n ** 63n - 1n;

describeStore('rollouts under a request id and without a number', (on) => {
  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    const { stage } = await scene.place();
    const create = async (requestId: string, rollouts: readonly Partial<NewRollout>[], request = requestId) => {
      const key = { rpc: 'CreateRollouts', requestId, requestDigest: sha256(request) };
      const rows = rollouts.map(newRollout);
      return (await scene.store.createRollouts(scene.caller, stage.id, rows, key, undefined)).rollouts;
    };
    const numbersOf = async (groupNumber: bigint) => {
      const all = await scene.rollouts({ stageId: stage.id });
      return all.filter(({ group }) => group.number === groupNumber).map(({ number }) => number);
    };
    return { scene, stage, create, numbersOf };
  };

  it('Q6: a rollout without a number gets one above all of its group and of the request, in order', async () => {
    const { scene, stage, create, numbersOf } = await fresh();
    await scene.makeRollouts(stage, [{ groupNumber: 1n, number: 4n }]);
    const made = await create('a', [
      { groupNumber: 1n, ...UNNUMBERED, priority: 1 },
      { groupNumber: 2n, ...UNNUMBERED },
      { groupNumber: 1n, number: 7n },
      { groupNumber: 1n, ...UNNUMBERED, priority: 2 },
      { groupNumber: 2n, ...UNNUMBERED },
      { groupNumber: 1n, number: 4n },
    ]);
    expect(made.map(({ number }) => number)).toEqual([8n, 0n, 7n, 9n, 1n, 4n]);
    expect(made.map(({ existed }) => existed)).toEqual([false, false, false, false, false, true]);
    expect(await numbersOf(1n)).toEqual([4n, 7n, 8n, 9n]);
    expect(await scene.rollout(made[3]!.rolloutId)).toMatchObject({ number: 9n, priority: 2 });
    expect((await create('b', [{ groupNumber: 2n, ...UNNUMBERED }]))[0]?.number).toBe(2n);
  });

  it('Q6: if a group has the largest number, a rollout without a number is refused and nothing is created', async () => {
    const { scene, stage, create } = await fresh();
    await scene.makeRollouts(stage, [{ number: LARGEST }]);
    const before = await countRows(on.sql, scene.namespace);
    const refusal = await refusalOf(create('a', [{ groupNumber: 1n }, UNNUMBERED]));
    expect(refusal).toMatchObject({ reason: 'INVALID_REQUEST', violations: [{ field: 'rollouts[1].number' }] });
    expect(await countRows(on.sql, scene.namespace)).toEqual(before);
  });

  it('ID1, Q6: the same request under one key returns the same rollouts, also once the queue is closed', async () => {
    const { scene, stage, create } = await fresh();
    await scene.makeRollouts(stage, [{ number: 3n }]);
    const request = [{ ...UNNUMBERED }, { number: 3n }, { groupNumber: 5n, number: 1n }, { ...UNNUMBERED }];
    const made = await create('a', request);
    const before = await countRows(on.sql, scene.namespace);
    expect(await create('a', request)).toEqual(made);
    await scene.store.closeQueue(scene.namespace, stage.id);
    expect(await create('a', request)).toEqual(made);
    expect(await countRows(on.sql, scene.namespace)).toEqual(before);
    expect(await refusalOf(create('a', request, 'other'))).toMatchObject({ reason: 'REQUEST_ID_REUSED' });
    expect(await refusalOf(create('b', [UNNUMBERED]))).toMatchObject({ reason: 'QUEUE_CLOSED' });
  });

  it('ID1, D3: a refused creation stores no key, so that it can be repeated once it can succeed', async () => {
    const { scene, create } = await fresh();
    const request = [{ ...UNNUMBERED, taskId: 'later' }];
    expect(await refusalOf(create('a', request))).toMatchObject({ reason: 'TASK_NOT_FOUND' });
    await scene.task('later');
    expect(await create('a', request)).toMatchObject([{ number: 0n, existed: false }]);
  });

  it('Q6: concurrent calls without numbers, and calls with numbers, create each number of a group once', async () => {
    const { scene, stage, create, numbersOf } = await fresh();
    const calls = Array.from({ length: 8 }, (_, i) =>
      create(`${i}`, [UNNUMBERED, { groupNumber: 1n, ...UNNUMBERED }, UNNUMBERED]),
    );
    const explicit = Array.from({ length: 4 }, () => scene.makeRollouts(stage, [{ number: 0n }, { number: 1n }]));
    const made = (await Promise.all([...calls, ...explicit])).flat();
    const ids = new Set(made.map(({ rolloutId }) => rolloutId));
    const numbers = await numbersOf(0n);
    expect(new Set(numbers).size).toBe(numbers.length);
    expect(new Set(await numbersOf(1n))).toEqual(new Set([0n, 1n, 2n, 3n, 4n, 5n, 6n, 7n]));
    expect(ids.size).toBe(numbers.length + 8);
    expect(made.filter(({ existed }) => !existed)).toHaveLength(ids.size);
  });

  it('ID1: concurrent calls with one key create the rollouts once, also with ids of the client', async () => {
    const { create, numbersOf } = await fresh();
    const id = randomUUID();
    const request = [{ ...UNNUMBERED, id }, UNNUMBERED];
    const answers = await Promise.all(Array.from({ length: 8 }, () => create('a', request)));
    for (const answer of answers) expect(answer).toEqual(answers[0]);
    expect(answers[0]?.[0]).toMatchObject({ rolloutId: id, existed: false });
    expect(await numbersOf(0n)).toEqual([0n, 1n]);
  });
});

describeStoreOn(['postgres'], 'rollouts with numbers beside a call that numbers rollouts', (on) => {
  it('Q6: are inserted only once that call has released the group, so that the two do not deadlock', async () => {
    const scene = new RolloutScene(on.store);
    const { stage } = await scene.place();
    await scene.queue(stage, 1);
    // What a call without numbers does: locks the group, then inserts the next number.
    await on.sql.rows('begin');
    await on.sql.rows(`select 1 from groups where stage = ${stage.key} for no key update`);
    const creation = scene.makeRollouts(stage, [{ number: 1n }]);
    await waitingForLocks(on.sql.rows, 1);
    // Shorter than the time after which Postgres resolves a deadlock.
    await on.sql.rows(`set local lock_timeout = '500ms'`);
    await on.sql.rows(`insert into rollouts select (jsonb_populate_record(r,
        jsonb_build_object('key', nextval('run_keys'), 'id', '${randomUUID()}', 'number', 1))).*
      from rollouts as r where r.stage = ${stage.key}`);
    await on.sql.rows('commit');
    expect(await creation).toMatchObject([{ number: 1n, existed: true }]);
  });
});
