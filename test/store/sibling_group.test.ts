import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { groupStatus } from '../../src/domain/rollout.ts';
import type { Stage } from '../../src/domain/run.ts';
import type { GroupUpsert } from '../../src/store/contract/group.ts';
import { describeStore } from './on_store.ts';
import { NO_RESULT, newGroup, RolloutScene } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows } from './sql.ts';
import { statementsOf } from './statement_count.ts';

const ALL = { limit: 1000, after: undefined };
const RACERS = 20;

describeStore('groups of siblings', (on) => {
  const fresh = async () => {
    const here = new RolloutScene(on.store);
    return { here, ...(await here.place()) };
  };
  const upsert = (here: RolloutScene, { id }: { readonly id: string }, fields: Partial<GroupUpsert> = {}) =>
    here.store.upsertGroup(here.namespace, newGroup(id, fields));
  const get = async (here: RolloutScene, stage: Stage, number = 0n) => {
    const group = await here.store.getGroup(here.namespace, { stageId: stage.id, number });
    if (group === undefined) throw new Error(`group ${number} was not found`);
    return group;
  };
  /** Rollouts of one group, each claimed and ended. */
  const end = async (here: RolloutScene, stage: Stage, rewards: readonly (number | undefined)[], groupNumber = 0n) => {
    for (const [i, reward] of rewards.entries()) {
      await here.makeRollouts(stage, [{ groupNumber, number: BigInt(i) }]);
      const success = reward === undefined ? undefined : reward > 0;
      await here.complete(await here.claimOne({ stageId: stage.id }), { result: { ...NO_RESULT, reward, success } });
    }
  };

  it('C-11, C-35: a group has the values of its creation; an upsert without values creates it, or returns it unchanged', async () => {
    const { here, run, stage } = await fresh();
    const labels = new Map([['split', 'train']]);
    const fields = { number: 7n, batch: -3n, onSuccess: 'CANCEL_PENDING', labels, metadataJson: '{"a": 1}' } as const;
    const { group, created } = await upsert(here, stage, fields);
    expect(created).toBe(true);
    expect(group).toMatchObject({ run: { id: run.id }, stage: { id: stage.id }, ...fields, metrics: new Map() });
    expect(await upsert(here, stage, { number: 7n })).toEqual({ group, created: false });
    expect(await upsert(here, stage, fields)).toEqual({ group, created: false });
    expect(await here.store.getGroup(here.namespace, { id: group.id })).toEqual(group);
    expect(await here.store.getGroup(here.namespace, { id: randomUUID() })).toBeUndefined();
    expect(await here.store.getGroup(here.namespace, { stageId: stage.id, number: 8n })).toBeUndefined();
    expect(await here.store.getGroup('other', { id: group.id })).toBeUndefined();
    expect((await refusalOf(upsert(here, { id: randomUUID() }))).reason).toBe('STAGE_NOT_FOUND');
    expect((await refusalOf(here.store.upsertGroup('other', newGroup(stage.id)))).reason).toBe('STAGE_NOT_FOUND');
  });

  it('C-35: racing creations make one row, by name or with its rollouts', async () => {
    const { here, stage } = await fresh();
    const answers = await Promise.all(
      Array.from({ length: RACERS }, async (_, i) => {
        if (i % 2 === 0) return (await upsert(here, stage, { number: 5n })).group.id;
        const [made] = await here.makeRollouts(stage, [{ groupNumber: 5n, number: BigInt(i) }]);
        return made?.groupId;
      }),
    );
    expect(new Set(answers).size).toBe(1);
    expect((await countRows(on.sql, here.namespace)).groups).toBe(1);
    expect((await get(here, stage, 5n)).statistics.pending).toBe(BigInt(RACERS / 2));
  });

  it('L4: its status follows from its siblings', async () => {
    const { here, stage } = await fresh();
    const status = async () => groupStatus((await get(here, stage)).statistics);
    await upsert(here, stage);
    expect(await status()).toBe('PENDING');
    await here.queue(stage, 3);
    expect(await status()).toBe('PENDING');
    const [a, b, c] = await here.claims({ count: 3 });
    expect(await status()).toBe('RUNNING');
    await here.cancel(a!.rollout.id);
    await here.fail(b!);
    expect(await status()).toBe('RUNNING');
    await here.cancel(c!.rollout.id);
    expect(await status()).toBe('FAILED');
    await here.retry({ id: c!.rollout.id, attempt: 1 });
    expect(await status()).toBe('RUNNING');
    await here.complete(await here.claimOne());
    expect(await status()).toBe('COMPLETED');
  });

  it('L4: it has started once a sibling has, also if that one was released', async () => {
    const { here, stage } = await fresh();
    await here.queue(stage, 1);
    const [claim] = await here.claims({ count: 1 });
    await here.release({ id: claim!.rollout.id, attempt: 1 });
    const { statistics } = await get(here, stage);
    expect(statistics).toMatchObject({ pending: 1n, started: 1n, live: 0n });
    expect(groupStatus(statistics)).toBe('RUNNING');
  });

  it('K-C8: its statistics are over the results of its rollouts; missing rewards and NaN are excluded', async () => {
    const { here, stage } = await fresh();
    await end(here, stage, [2, 4, undefined, Number.NaN, 4, -1]);
    await here.makeRollouts(stage, [{ number: 10n }, { number: 11n }]);
    const live = await here.claimOne();
    const { statistics } = await get(here, stage);
    const winner = (await here.rollouts({ stageId: stage.id })).find(({ number }) => number === 1n);
    expect(statistics).toEqual({
      pending: 1n,
      started: 7n,
      live: 1n,
      completed: 6n,
      failed: 0n,
      cancelled: 0n,
      judged: 5n,
      successes: 3n,
      rewards: { count: 4n, mean: 2.25, std: expect.closeTo(Math.sqrt(16.75 / 3), 12) },
      best: { rolloutId: winner?.id, reward: 4 },
    });
    await here.fail(live, { result: { ...NO_RESULT, reward: 100 } });
    expect((await get(here, stage)).statistics).toMatchObject({ failed: 1n, judged: 6n, best: { reward: 100 } });
  });

  it('W11: infinite rewards have no spread, and cause no error', async () => {
    const { here, stage } = await fresh();
    await end(here, stage, [Number.POSITIVE_INFINITY, 1, Number.NEGATIVE_INFINITY]);
    await end(here, stage, [1e308, 1e308, -1e308], 1n);
    const [infinite, immense] = await here.store.listGroups(here.namespace, stage.id, ALL, 'BASIC');
    expect(infinite?.statistics.rewards).toEqual({ count: 3n, mean: Number.NaN, std: Number.NaN });
    expect(infinite?.statistics.best?.reward).toBe(Number.POSITIVE_INFINITY);
    expect(immense?.statistics.rewards.count).toBe(3n);
    expect(immense?.statistics.best?.reward).toBe(1e308);
  });

  it('C-52: groups are listed by number, in pages; statistics take the same statements for one and for fifty', async () => {
    const { here, stage } = await fresh();
    const numbers = Array.from({ length: 50 }, (_, i) => BigInt((i * 7) % 50));
    await here.makeRollouts(
      stage,
      numbers.map((groupNumber) => ({ groupNumber, number: 0n, metadataJson: '{"x":1}' })),
    );
    for (const claim of await here.claims({ count: 50 })) {
      await here.complete(claim, { result: { ...NO_RESULT, reward: Number(claim.rollout.group.number) } });
    }
    const list = (limit: number, after?: bigint) =>
      here.store.listGroups(here.namespace, stage.id, { limit, after }, 'BASIC');
    expect((await list(1000)).map(({ number }) => number)).toEqual(numbers.map((_, i) => BigInt(i)));
    expect((await list(2, 30n)).map(({ number, statistics }) => [number, statistics.rewards.mean])).toEqual([
      [31n, 31],
      [32n, 32],
    ]);
    const cost = (limit: number) => statementsOf(on.engine, () => list(limit));
    expect(await cost(50)).toBe(await cost(1));
    // On Postgres, two of the three are sent between planner settings and a commit.
    expect(await cost(50)).toBe(on.engine === 'postgres' ? 7 : 3);
    expect((await refusalOf(here.store.listGroups('other', stage.id, ALL, 'BASIC'))).reason).toBe('STAGE_NOT_FOUND');
  });

  it('FM7: unset fields stay, labels are replaced and metrics merged; the BASIC view omits JSON', async () => {
    const { here, stage } = await fresh();
    const { group } = await upsert(here, stage, { batch: 1n, labels: new Map([['a', '1']]), metadataJson: '{}' });
    const update = async (changes: Partial<GroupUpsert>) => (await upsert(here, stage, changes)).group;
    await update({ metrics: new Map([['kl', Number.NaN]]), labels: new Map([['b', '2']]) });
    const after = await update({ metrics: new Map([['loss', 1]]), onSuccess: 'CANCEL_PENDING' });
    expect(after).toMatchObject({
      id: group.id,
      batch: 1n,
      onSuccess: 'CANCEL_PENDING',
      labels: new Map([['b', '2']]),
    });
    expect([...after.metrics]).toEqual([
      ['kl', Number.NaN],
      ['loss', 1],
    ]);
    expect(after.metadataJson).toBe('{}');
    expect((await here.store.listGroups(here.namespace, stage.id, ALL, 'BASIC'))[0]?.metadataJson).toBe('');
    const many = new Map(Array.from({ length: 255 }, (_, i) => [`m${i}`, i]));
    expect((await refusalOf(update({ metrics: many }))).reason).toBe('INVALID_REQUEST');
    expect(await update({ labels: new Map(), metadataJson: '' })).toMatchObject({
      labels: new Map(),
      metadataJson: '',
    });
  });

  it('M5: its revision rises with every change of its own and of its rollouts', async () => {
    const { here, stage } = await fresh();
    const seen: bigint[] = [];
    const look = async () => seen.push((await get(here, stage)).revision);
    await upsert(here, stage);
    await look();
    await here.queue(stage, 2);
    await look();
    const claim = await here.claimOne();
    await look();
    await here.start(claim);
    await look();
    await upsert(here, stage, { batch: 2n });
    await look();
    await here.complete(claim);
    await look();
    const judgement = { success: true, reason: 'seen', actor: '' };
    await here.store.overrideValidation(here.caller, claim.rollout.id, undefined, judgement);
    await look();
    expect(seen).toEqual([...new Set(seen)].sort((a, b) => (a < b ? -1 : 1)));
  });
});
