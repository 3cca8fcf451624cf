import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Claim } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, openWriter, reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { answersOf, errorsOf, type Instances, openInstances } from './instances.ts';

const RACERS = 20;

describe.each(ENGINES)('rollouts with twenty concurrent callers, on %s', (engine) => {
  let instances: Instances;
  beforeAll(async () => {
    instances = await openInstances(engine);
  });
  afterAll(() => instances?.[Symbol.asyncDispose]());

  async function newStage(): Promise<string> {
    const { runs } = instances.clients[0]!;
    const { run } = await runs.createRun({ initialStatus: Status.RUNNING });
    const { stage } = await runs.getOrCreateStage({ runId: run!.id, kind: StageKind.TRAIN_STEP, number: 0n });
    return stage!.id;
  }

  /** Number of siblings of group 0. */
  function siblings(count: number) {
    return Array.from({ length: count }, (_, i) => ({ groupNumber: 0n, number: BigInt(i) }));
  }

  async function claimOne(): Promise<Claim> {
    const stageId = await newStage();
    const [client] = instances.clients;
    await client!.rollouts.createRollouts({ stageId, rollouts: siblings(1) });
    const { claims } = await client!.rollouts.claimRollouts({ stageId, workerId: 'w' });
    return claims[0]!;
  }

  async function historyOf(rolloutId: string): Promise<Status[]> {
    const { changes } = await instances.clients[0]!.runs.listStatusChanges({ rolloutId, ascending: true });
    return changes.map(({ newStatus }) => newStatus);
  }

  async function count(table: string, where: string): Promise<number> {
    const [row] = await instances.sql.rows(`select count(*) as n from ${table} where ${where}`);
    return Number(row?.n);
  }

  it('K-C6: concurrent creations of one task make one row, and no value of any caller is lost', async () => {
    const id = randomUUID();
    const outcomes = await instances.race(RACERS, (client, racer) =>
      client.rollouts.upsertTasks({ tasks: [{ id, ...(racer % 2 === 0 ? { name: 'even' } : { category: 'odd' }) }] }),
    );
    expect(errorsOf(outcomes)).toEqual([]);
    expect(answersOf(outcomes).reduce((sum, { createdCount }) => sum + createdCount, 0)).toBe(1);
    expect(await count('tasks', `id = '${id}'`)).toBe(1);
    const { task } = await instances.clients[0]!.rollouts.getTask({ taskId: id });
    expect(task).toMatchObject({ name: 'even', category: 'odd' });
  });

  it('Q6: concurrent creations of one group, by name or with its rollouts, make one group, and each sibling once', async () => {
    const stageId = await newStage();
    const outcomes = await instances.race(RACERS, async ({ rollouts }, racer) => {
      if (racer % 3 === 0) return [(await rollouts.upsertGroup({ stageId, number: 0n })).group!.id];
      const made = await rollouts.createRollouts({ stageId, rollouts: siblings(8) });
      return made.rollouts.flatMap(({ groupId, rolloutId, existed }) => [groupId, `${rolloutId} ${existed}`]);
    });
    expect(errorsOf(outcomes)).toEqual([]);
    const groups = new Set(answersOf(outcomes).map(([groupId]) => groupId));
    expect(groups.size).toBe(1);
    const said = answersOf(outcomes).flatMap((all) => all.filter((text) => text.includes(' ')));
    expect(said.filter((text) => text.endsWith('false'))).toHaveLength(8);
    expect(new Set(said.map((text) => text.split(' ')[0])).size).toBe(8);
    const { group } = await instances.clients.at(-1)!.rollouts.getGroup({ stageId, number: 0n });
    expect(group).toMatchObject({ id: [...groups][0] });
    expect(await count('rollouts', `group_key = (select key from groups where id = '${group!.id}')`)).toBe(8);
  });

  it('Q4: of twenty that claim eight rollouts, eight get one each, and no two the same', async () => {
    const stageId = await newStage();
    await instances.clients[0]!.rollouts.createRollouts({ stageId, rollouts: siblings(8) });
    const outcomes = await instances.race(RACERS, (client, racer) =>
      client.rollouts.claimRollouts({ stageId, workerId: `${racer}` }),
    );
    expect(errorsOf(outcomes)).toEqual([]);
    const claimed = answersOf(outcomes).flatMap(({ claims }) => claims.map(({ rollout }) => rollout!));
    expect(new Set(claimed.map(({ id }) => id)).size).toBe(8);
    expect(claimed.every(({ attempt }) => attempt === 1)).toBe(true);
    expect(new Set(claimed.map(({ trajectoryId }) => trajectoryId)).size).toBe(8);
  });

  it('L5: twenty equal completions complete a rollout once; of twenty different ones, one succeeds', async () => {
    const { rollout } = await claimOne();
    const done = { rolloutId: rollout!.id, attempt: 1, result: { reward: 1 } };
    expect(errorsOf(await instances.race(RACERS, (client) => client.rollouts.completeRollout(done)))).toEqual([]);
    expect(await historyOf(rollout!.id)).toEqual([Status.PENDING, Status.INITIALIZING, Status.COMPLETED]);
    const other = (await claimOne()).rollout!;
    const outcomes = await instances.race(RACERS, (client, racer) =>
      client.rollouts.completeRollout({ rolloutId: other.id, attempt: 1, result: { reward: racer } }),
    );
    expect(answersOf(outcomes)).toHaveLength(1);
    expect(new Set(errorsOf(outcomes).map(reasonOf))).toEqual(new Set(['RESULT_CONFLICT']));
    const { rollout: now } = await instances.clients[0]!.rollouts.getRollout({ rolloutId: other.id });
    expect(now!.reward).toBe(answersOf(outcomes)[0]!.rollout!.reward);
    expect(await count('groups', `id = '${other.groupId}' and terminal_rollouts = 1`)).toBe(1);
  });

  it('L3: of concurrent complete, fail, cancel and release of one rollout one succeeds, and the history names its caller', async () => {
    const { rollout } = await claimOne();
    const lease = { rolloutId: rollout!.id, attempt: 1 };
    const outcomes = await instances.race(RACERS, async ({ rollouts }, racer) => {
      const verbs = [
        () => rollouts.completeRollout(lease),
        () => rollouts.failRollout(lease),
        () => rollouts.cancelRollout({ rolloutId: lease.rolloutId }),
        () => rollouts.releaseRollout(lease),
      ];
      return verbs[racer % verbs.length]!();
    });
    const history = await historyOf(rollout!.id);
    // A rollout that was released first may be cancelled afterwards.
    expect(history.slice(2).join()).toMatch(
      new RegExp(
        `^(${Status.COMPLETED}|${Status.FAILED}|(${Status.PENDING},)?${Status.CANCELLED}|${Status.PENDING})$`,
        'u',
      ),
    );
    for (const error of errorsOf(outcomes)) expect(['LEASE_LOST', 'ILLEGAL_TRANSITION']).toContain(reasonOf(error));
    const terminal = history.at(-1) !== Status.PENDING ? 1 : 0;
    expect(await count('groups', `id = '${rollout!.groupId}' and terminal_rollouts = ${terminal}`)).toBe(1);
  });

  it('K-C1: forty concurrent rollouts through one client never store a turn under another rollout', async () => {
    const stageId = await newStage();
    const [client] = instances.clients as [AnabranchClient];
    await client.rollouts.createRollouts({ stageId, rollouts: siblings(40) });
    const { claims } = await client.rollouts.claimRollouts({ stageId, workerId: 'one process', maxRollouts: 40 });
    expect(claims).toHaveLength(40);
    await Promise.all(claims.map((claim, i) => play(client, claim, 3 + (i % 5), i % 2 === 0)));
    const seen = new Map<string, string[]>();
    let current = '';
    for await (const answer of client.rollouts.readRollouts({ stageId })) {
      current = answer.rollout?.id ?? current;
      const marks = answer.steps.flatMap(({ actions }) => actions.map(({ name }) => name));
      seen.set(current, [...(seen.get(current) ?? []), ...marks]);
    }
    const wanted = claims.map(({ rollout }, i): [string, string[]] => [
      rollout!.id,
      Array.from({ length: 3 + (i % 5) }, (_, turn) => `${rollout!.id} ${turn}`),
    ]);
    expect(seen).toEqual(new Map(wanted));
  });
});

/** Takes its turns interleaved with all others: by the writer, or without a helper. */
async function play(
  client: AnabranchClient,
  { rollout, trajectory }: Claim,
  turns: number,
  helped: boolean,
): Promise<void> {
  const rolloutId = rollout!.id;
  const trajectoryId = trajectory!.id;
  const step = (turn: number) => ({ actions: [{ type: 'say', name: `${rolloutId} ${turn}` }], reward: 1 });
  if (helped) {
    await using writer = await openWriter(client, { trajectoryId, uid: trajectory!.uid });
    await writer.append({});
    for (let turn = 0; turn < turns; turn += 1) await writer.append(step(turn));
  } else {
    await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 0n } });
    for (let turn = 0; turn < turns; turn += 1)
      await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: BigInt(turn + 1), ...step(turn) } });
  }
  const expectedNextStepNumber = BigInt(turns + 1);
  const { rollout: done } = await client.rollouts.completeRollout({ rolloutId, attempt: 1, expectedNextStepNumber });
  expect([done!.reward, done!.turns]).toEqual([turns, BigInt(turns)]);
}
