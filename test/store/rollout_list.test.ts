import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { Rollout } from '../../src/domain/rollout.ts';
import type { RolloutCursor, RolloutFilter } from '../../src/store/contract/rollout.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { NO_RESULT, newEnvironment, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';

describeStore('listing and changing rollouts', (on) => {
  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    return { scene, ...(await scene.place()) };
  };
  const cursorOf = ({ stage, group, number }: Rollout): RolloutCursor => {
    return { stage: stage.key, groupNumber: group.number, number };
  };

  it('are listed by stage in creation order, then group number, then number, in pages', async () => {
    const { scene, run, stage } = await fresh();
    const second = await scene.stage(run, { kind: 'EVAL', number: 0n, status: 'RUNNING' });
    const elsewhere = await scene.place();
    await scene.queue(elsewhere.stage, 3);
    for (const groupNumber of [5n, 2n, 10n]) {
      for (const place of [second, stage]) {
        await scene.makeRollouts(
          place,
          [3n, 11n, 1n].map((number) => ({ groupNumber, number })),
        );
      }
    }
    const all = await scene.rollouts({ runId: run.id });
    expect(all.map(({ stage: at, group, number }) => [at.id, group.number, number])).toEqual(
      [stage, second].flatMap(({ id }) =>
        [2n, 5n, 10n].flatMap((group) => [1n, 3n, 11n].map((number) => [id, group, number])),
      ),
    );
    for (const [of, whole] of [
      [{ runId: run.id }, all],
      [{ stageId: second.id }, all.slice(9)],
      [{ groupId: all[3]!.group.id }, all.slice(3, 6)],
    ] as const) {
      const paged: Rollout[] = [];
      for (let after: RolloutCursor | undefined; ; after = cursorOf(paged.at(-1)!)) {
        const page = await scene.rollouts(of, {}, 2, after);
        paged.push(...page);
        if (page.length < 2) break;
      }
      expect(paged).toEqual(whole);
    }
  });

  it('are filtered by task, status, label, reward and verdict, combined with AND', async () => {
    const { scene, stage } = await fresh();
    await scene.task('t');
    const of = { stageId: stage.id };
    await scene.queue(stage, 2, { taskId: 't', labels: new Map([['split', 'train']]) });
    await scene.queue(stage, 3, { groupNumber: 1n });
    const [a, b, c, d] = await scene.claims({ count: 4 });
    await scene.append(a!.trajectory, [wordStep(0n, 'x', { reward: 2 })]);
    await scene.complete(b!, { result: { ...NO_RESULT, reward: 5, success: true } });
    await scene.complete(c!, { result: { ...NO_RESULT, reward: Number.NaN, success: false } });
    await scene.fail(d!, { result: { ...NO_RESULT, reward: Number.NEGATIVE_INFINITY } });
    const numbers = async (filter: Partial<RolloutFilter>) =>
      (await scene.rollouts(of, filter)).map(({ group, number }) => `${group.number}/${number}`);
    expect(await numbers({})).toEqual(['0/0', '0/1', '1/0', '1/1', '1/2']);
    expect(await numbers({ taskId: 't' })).toEqual(['0/0', '0/1']);
    expect(await numbers({ taskId: 'u' })).toEqual([]);
    expect(await numbers({ statuses: ['COMPLETED'] })).toEqual(['0/1', '1/0']);
    expect(await numbers({ statuses: ['PENDING', 'FAILED'] })).toEqual(['1/1', '1/2']);
    expect(await numbers({ statuses: [] })).toEqual([]);
    expect(await numbers({ labels: new Map([['split', 'train']]) })).toEqual(['0/0', '0/1']);
    expect(await numbers({ minReward: 2 })).toEqual(['0/0', '0/1']);
    expect(await numbers({ minReward: Number.NEGATIVE_INFINITY })).toEqual(['0/0', '0/1', '1/1']);
    expect(await numbers({ maxReward: 2 })).toEqual(['0/0', '1/1']);
    expect(await numbers({ minReward: 2, maxReward: 4 })).toEqual(['0/0']);
    expect(await numbers({ success: true })).toEqual(['0/1']);
    // A FAILED rollout is no success, whatever its result.
    expect(await numbers({ success: false })).toEqual(['1/0', '1/1']);
    expect(await numbers({ taskId: 't', success: true, minReward: 5, statuses: ['COMPLETED'] })).toEqual(['0/1']);
  });

  it('Q6: of a task or a worker are listed across runs, newest first, in pages', async () => {
    const { scene, stage } = await fresh();
    await scene.task('t');
    const other = await scene.place();
    const deletedPlace = await scene.place();
    const ids: string[] = [];
    for (const [i, place] of [stage, other.stage, deletedPlace.stage, stage, other.stage].entries()) {
      ids.push(...(await scene.queue(place, 3, { groupNumber: BigInt(i), taskId: i === 4 ? '' : 't' })));
    }
    for (const workerId of ['a', 'b', 'a']) await scene.claims({ count: 5, workerId });
    await scene.store.deleteRun(scene.namespace, deletedPlace.run.id, 'REFUSE', true);
    const listed = async (filter: Partial<RolloutFilter>): Promise<number[]> => {
      const all: Rollout[] = [];
      for (let after: RolloutCursor | undefined; ; after = { key: all.at(-1)!.key }) {
        const page = await scene.rollouts(undefined, filter, 2, after);
        all.push(...page);
        if (page.length < 2) return all.map(({ id }) => ids.indexOf(id));
      }
    };
    expect(await listed({ taskId: 't' })).toEqual([11, 10, 9, 5, 4, 3, 2, 1, 0]);
    expect(await listed({ workerId: 'a' })).toEqual([14, 13, 12, 11, 10, 4, 3, 2, 1, 0]);
    expect(await listed({ workerId: 'b' })).toEqual([9, 5]);
    expect(await listed({ workerId: 'a', taskId: 't' })).toEqual([11, 10, 4, 3, 2, 1, 0]);
    expect(await listed({ workerId: 'c' })).toEqual([]);
    expect(await listed({ taskId: 'unknown' })).toEqual([]);
    expect(await listed({ workerId: 'a', statuses: ['COMPLETED'] })).toEqual([]);
    const stranger = new RolloutScene(on.store);
    await stranger.task('t');
    expect(await stranger.rollouts(undefined, { taskId: 't' })).toEqual([]);
    expect(await stranger.rollouts(undefined, { workerId: 'a' })).toEqual([]);
  });

  it('Q6: the worker is that of the last attempt that started, also after its end', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 2);
    const first = await scene.claimOne({ workerId: 'a' });
    await scene.release(tokenOf(first));
    const list = async (workerId: string, of?: RolloutFilter['of']) =>
      (await scene.rollouts(of, { workerId })).map(({ number }) => number);
    expect(await list('a')).toEqual([0n]);
    const again = await scene.claimOne({ workerId: 'b' });
    expect(await list('a')).toEqual([]);
    await scene.complete(again);
    for (const of of [undefined, { stageId: stage.id }, { groupId: again.rollout.group.id }]) {
      expect(await list('b', of)).toEqual([0n]);
      expect(await list('a', of)).toEqual([]);
    }
  });

  it('Q6: are filtered by creation time, from an inclusive start to an exclusive end', async () => {
    const { scene, stage } = await fresh();
    await scene.task('t');
    await scene.queue(stage, 3, { taskId: 't' });
    const hourOf = async (number: number, hours: number) =>
      on.sql.rows(
        `update rollouts set create_time = ${on.sql.earlier('create_time', hours * 3600)}
          where namespace = '${scene.namespace}' and number = ${number}`,
      );
    await hourOf(0, 2);
    await hourOf(1, 1);
    const [a, b, c] = (await scene.rollouts({ stageId: stage.id })).map(({ createTime }) => createTime);
    for (const of of [undefined, { stageId: stage.id }]) {
      const numbers = async (filter: Partial<RolloutFilter>) =>
        (await scene.rollouts(of, { taskId: 't', ...filter })).map(({ number }) => Number(number)).sort();
      expect(await numbers({ createTimeFrom: b! })).toEqual([1, 2]);
      expect(await numbers({ createTimeTo: b! })).toEqual([0]);
      expect(await numbers({ createTimeFrom: a!, createTimeTo: c! })).toEqual([0, 1]);
      expect(await numbers({ createTimeFrom: c! + 1n })).toEqual([]);
    }
  });

  it('FM7: the BASIC view omits large fields', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1, { inputJson: '{"a":1}', metadataJson: '{"b":2}' });
    await scene.complete(await scene.claimOne(), { result: { ...NO_RESULT, errors: ['e'], summaryJson: '{}' } });
    const full = await scene.rollout(id);
    const page = { limit: 10, after: undefined };
    const [basic] = await scene.store.listRollouts(scene.namespace, { of: { stageId: stage.id } }, page, 'BASIC');
    expect(basic).toEqual({
      ...full,
      inputJson: '',
      metadataJson: '',
      result: { ...NO_RESULT, errors: ['e'], summaryJson: '' },
    });
  });

  it('of an unknown parent, or of another namespace, none are listed', async () => {
    const { scene, run, stage } = await fresh();
    await scene.queue(stage, 1);
    const [{ group }] = (await scene.rollouts({ stageId: stage.id })) as [Rollout];
    const stranger = new RolloutScene(on.store);
    for (const [of, reason] of [
      [{ runId: run.id }, 'RUN_NOT_FOUND'],
      [{ stageId: stage.id }, 'STAGE_NOT_FOUND'],
      [{ groupId: group.id }, 'GROUP_NOT_FOUND'],
    ] as const) {
      expect((await refusalOf(stranger.rollouts(of))).reason).toBe(reason);
    }
    await scene.store.deleteRun(scene.namespace, run.id, 'REFUSE');
    for (const [of, reason] of [
      [{ runId: run.id }, 'RUN_NOT_FOUND'],
      [{ stageId: stage.id }, 'STAGE_NOT_FOUND'],
      [{ groupId: group.id }, 'GROUP_NOT_FOUND'],
    ] as const) {
      expect((await refusalOf(scene.rollouts(of))).reason).toBe(reason);
    }
    expect(await scene.store.getRollout(scene.namespace, randomUUID())).toBeUndefined();
  });

  it('an update changes the fields it sets; labels and environments are replaced, metrics and timings merged', async () => {
    const { scene, run, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1, { labels: new Map([['a', 'b']]), maxTurns: 4n });
    const { environment } = await scene.store.upsertEnvironment(
      scene.caller,
      newEnvironment(run.id, { type: 'android', externalId: 'x' }),
    );
    const span = (from: bigint) => ({ startTime: from, endTime: undefined });
    await scene.claimOne();
    const before = await scene.rollout(id);
    const updated = await scene.store.updateRollout(scene.caller, id, undefined, {
      labels: new Map([['c', 'd']]),
      priority: 2,
      maxTurns: undefined,
      maxAttempts: 7,
      modelUri: 'm',
      statusMessage: 's',
      phase: 'p',
      metrics: new Map([['x', 1]]),
      timings: new Map([['t', span(1n)]]),
      metadataJson: '{}',
      environmentIds: [environment.id],
    });
    expect(updated).toMatchObject({
      labels: new Map([['c', 'd']]),
      priority: 2,
      maxTurns: undefined,
      maxAttempts: 7,
      modelUri: 'm',
      statusMessage: 's',
      phase: 'p',
      metadataJson: '{}',
      status: 'INITIALIZING',
      revision: before.revision + 1n,
    });
    const merged = await scene.store.updateRollout(scene.caller, id, undefined, {
      metrics: new Map([['y', Number.NaN]]),
      timings: new Map([['u', span(2n)]]),
    });
    expect(merged.metrics).toEqual(
      new Map([
        ['x', 1],
        ['y', Number.NaN],
      ]),
    );
    expect([...merged.timings.keys()]).toEqual(['t', 'u']);
    expect((await scene.record(id)).environmentIds).toEqual([environment.id]);
    await scene.store.updateRollout(scene.caller, id, undefined, { environmentIds: [] });
    expect((await scene.record(id)).environmentIds).toEqual([]);
    expect(await scene.history('ROLLOUT', { id })).toHaveLength(2);
  });

  it('an update is refused as a whole: unknown environments or those of another run, too many metrics or timings', async () => {
    const { scene, stage } = await fresh();
    const other = await scene.place();
    const [id = ''] = await scene.queue(stage, 1);
    const { environment: foreign } = await scene.store.upsertEnvironment(scene.caller, newEnvironment(other.run.id));
    await scene.claimOne();
    const before = await scene.record(id);
    const many = (count: number) => Array.from({ length: count }, (_, i) => `k${i}`);
    for (const [changes, reason] of [
      [{ environmentIds: [randomUUID()] }, 'ENVIRONMENT_NOT_FOUND'],
      [{ environmentIds: [foreign.id] }, 'INVALID_REQUEST'],
      [{ metrics: new Map(many(257).map((key) => [key, 1])) }, 'INVALID_REQUEST'],
      [{ timings: new Map(many(65).map((key) => [key, { startTime: 1n, endTime: 2n }])) }, 'INVALID_REQUEST'],
    ] as const) {
      const update = scene.store.updateRollout(scene.caller, id, undefined, { ...changes, phase: 'x' });
      expect((await refusalOf(update)).reason).toBe(reason);
    }
    expect(await scene.record(id)).toEqual(before);
    const nowhere = scene.store.updateRollout(scene.caller, randomUUID(), undefined, { phase: 'x' });
    expect((await refusalOf(nowhere)).reason).toBe('ROLLOUT_NOT_FOUND');
  });

  it('Q2: an update with an attempt applies to that attempt only, also after its end', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1);
    const update = (attempt: number) =>
      scene.store.updateRollout(scene.caller, id, attempt, { phase: `of ${attempt}` });
    expect((await refusalOf(update(1))).reason).toBe('LEASE_LOST');
    const first = await scene.claimOne();
    expect((await update(1)).phase).toBe('of 1');
    await scene.release(tokenOf(first));
    expect((await refusalOf(update(1))).reason).toBe('LEASE_LOST');
    const second = await scene.claimOne();
    expect((await refusalOf(update(1))).reason).toBe('LEASE_LOST');
    await scene.complete(second);
    expect((await update(2)).phase).toBe('of 2');
  });

  it('metrics set by twenty concurrent updates are all stored', async () => {
    const { scene, stage } = await fresh();
    const [id = ''] = await scene.queue(stage, 1);
    await scene.claimOne();
    await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        scene.store.updateRollout(scene.caller, id, undefined, { metrics: new Map([[`m${i}`, i]]) }),
      ),
    );
    const rollout = await scene.rollout(id);
    expect(rollout.metrics.size).toBe(20);
    expect(rollout.revision).toBe(22n);
  });
});
