import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { runHint } from '../../src/domain/change.ts';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { StageVerb } from '../../src/domain/lifecycle.ts';
import type { Stage } from '../../src/domain/run.ts';
import type { ClaimRequest } from '../../src/store/contract/rollout.ts';
import type { Store } from '../../src/store/contract/store.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { describeStore, openOn } from './on_store.ts';
import { claimed, newGroup, RolloutScene, tokenOf } from './rollout_scene.ts';
import { SILENT } from './run_scene.ts';
import { refusalOf } from './scene.ts';
import { dumpNamespace, waitingForLocks } from './sql.ts';

const close = (scene: RolloutScene, { id }: Pick<Stage, 'id'>) => scene.store.closeQueue(scene.namespace, id);
const move = (scene: RolloutScene, { id }: Pick<Stage, 'id'>, verb: StageVerb) =>
  scene.store.moveStage(scene.caller, id, verb, SILENT);

describeStore('closing a queue', (on) => {
  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    const { run, stage } = await scene.place();
    const isDrained = async (fields: Partial<ClaimRequest>) => {
      const [outcome] = await scene.store.claimRollouts([scene.request(fields)]);
      const { claims, drained } = claimed(outcome);
      if (claims.length > 0) throw new Error('something was claimed');
      return drained;
    };
    return { scene, run, stage, isDrained };
  };

  it('Q2: sets queue_close_time once, and notifies watchers of the run; closing again writes nothing', async () => {
    const { scene, run, stage } = await fresh();
    expect(stage.queueCloseTime).toBeUndefined();
    const told: unknown[] = [];
    const stop = scene.store.onChange((hint) => told.push(hint));
    const closed = await close(scene, stage);
    expect(told).toContain(runHint(run.key));
    stop();
    expect(closed).toMatchObject({ status: 'RUNNING', revision: stage.revision + 1n });
    expect(closed.queueCloseTime).toBe(closed.updateTime);
    const changes = await scene.store.readRunChanges(scene.namespace, run.id, undefined, true);
    expect(changes?.stages).toEqual([closed]);
    const before = await dumpNamespace(on.sql, scene.namespace);
    expect(await close(scene, stage)).toEqual(closed);
    expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
  });

  it('Q2: a closed queue accepts no new rollout, and a call that contains one changes nothing', async () => {
    const { scene, stage } = await fresh();
    const first = await scene.makeRollouts(stage, [{ number: 0n }, { number: 1n }]);
    await close(scene, stage);
    const before = await dumpNamespace(on.sql, scene.namespace);
    for (const rollouts of [[{ groupNumber: 1n }], [{ number: 0n }, { number: 2n }]]) {
      expect(await refusalOf(scene.makeRollouts(stage, rollouts))).toMatchObject({
        reason: 'QUEUE_CLOSED',
        metadata: { stage: stage.id },
      });
    }
    const again = await scene.makeRollouts(stage, [{ number: 0n }, { number: 1n }]);
    expect(again).toEqual(first.map((made) => ({ ...made, existed: true })));
    expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
    const conflict = scene.makeRollouts(stage, [{ number: 0n, priority: 9 }, { number: 2n }]);
    expect((await refusalOf(conflict)).reason).toBe('ROLLOUT_CONFLICT');
  });

  it('Q2: groups can be created in a closed queue, and rollouts claimed, released and retried', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 1, { maxAttempts: 9 });
    await close(scene, stage);
    expect(await scene.store.upsertGroup(scene.namespace, newGroup(stage.id, { number: 5n }))).toMatchObject({
      created: true,
    });
    await scene.fail(await scene.claimOne());
    await scene.retry({ id: (await scene.rollouts({ stageId: stage.id }))[0]!.id, attempt: 1 });
    expect((await scene.claimOne()).rollout.attempt).toBe(2);
  });

  it('Q2: a terminal status closes the queue and ReopenStage opens it; both keep the time of an earlier close', async () => {
    const { scene, run } = await fresh();
    for (const [i, verb] of (['complete', 'fail', 'cancel'] as const).entries()) {
      const stage = await scene.stage(run, { number: BigInt(10 + i), status: 'RUNNING' });
      const ended = await move(scene, stage, verb);
      expect(ended.queueCloseTime).toBe(ended.endTime);
      expect(await close(scene, stage)).toEqual(ended);
      expect((await refusalOf(scene.queue(stage, 1))).reason).toBe('QUEUE_CLOSED');
      expect((await move(scene, stage, 'reopen')).queueCloseTime).toBeUndefined();
      await scene.queue(stage, 1);
      const { queueCloseTime } = await close(scene, stage);
      expect((await move(scene, stage, verb)).queueCloseTime).toBe(queueCloseTime);
    }
  });

  it('Q2: ReopenStage opens the queue of a RUNNING stage, and writes no StatusChange', async () => {
    const { scene, stage } = await fresh();
    await close(scene, stage);
    const history = await scene.history('STAGE', stage);
    const opened = await move(scene, stage, 'reopen');
    expect(opened).toMatchObject({ status: 'RUNNING', queueCloseTime: undefined, revision: stage.revision + 2n });
    await scene.queue(stage, 1);
    expect(await scene.history('STAGE', stage)).toEqual(history);
    expect(await move(scene, stage, 'reopen')).toEqual(opened);
  });

  it('Q2: a claim by stage is drained once the queue is closed and no matching rollout is PENDING, INITIALIZING or RUNNING', async () => {
    const { scene, run, stage, isDrained } = await fresh();
    const of = { stageId: stage.id };
    expect(await isDrained(of), 'nothing was created yet').toBe(false);
    const [id = ''] = await scene.queue(stage, 1, { labels: new Map([['a', 'b']]), maxAttempts: 9 });
    await close(scene, stage);
    const others = [{ labels: new Map([['a', 'c']]) }, { minPriority: 1 }, { taskIds: ['unknown'] }];
    for (const other of others) expect(await isDrained({ ...of, ...other })).toBe(true);
    await scene.move(run, 'pause');
    expect(await isDrained(of), 'PENDING, of a paused run').toBe(false);
    await scene.move(run, 'resume');
    const claim = await scene.claimOne(of);
    for (const each of [of, { ...of, runId: run.id }]) expect(await isDrained(each), 'INITIALIZING').toBe(false);
    await scene.start(claim);
    expect(await isDrained(of), 'RUNNING').toBe(false);
    await scene.fail(claim);
    for (const each of [of, { ...of, runId: run.id }]) expect(await isDrained(each)).toBe(true);
    await scene.retry({ id, attempt: 1 });
    const again = await scene.claimOne(of);
    expect(await isDrained(of), 'retried').toBe(false);
    await scene.release(tokenOf(again));
    await scene.cancel(id);
    expect(await isDrained(of)).toBe(true);
    await move(scene, stage, 'reopen');
    expect(await isDrained(of), 'open again').toBe(false);
  });

  it('Q2: a claim by run is drained once the queues of all stages are closed, and there is at least one stage', async () => {
    const { scene, run, stage, isDrained } = await fresh();
    const empty = await scene.makeRun({ status: 'RUNNING' });
    expect(await isDrained({ runId: empty.id }), 'a run without stages').toBe(false);
    const of = { runId: run.id };
    const next = await scene.stage(run, { number: 1n });
    await close(scene, stage);
    expect(await isDrained(of), 'another stage is open').toBe(false);
    await move(scene, next, 'cancel');
    expect(await isDrained(of), 'one is closed, the other terminal').toBe(true);
    await move(scene, stage, 'complete');
    expect(await isDrained(of), 'all are terminal').toBe(true);
    await scene.stage(run, { number: 2n });
    expect(await isDrained(of), 'a new stage').toBe(false);
  });

  it('Q2, Q4: a claim is drained if its stage or run is terminal, even if rollouts are queued', async () => {
    const { scene, run, stage, isDrained } = await fresh();
    await scene.queue(stage, 1);
    await scene.move(run, 'cancel');
    for (const of of [{ runId: run.id }, { stageId: stage.id }]) expect(await isDrained(of)).toBe(true);
    const empty = await scene.makeRun({ status: 'RUNNING' });
    await scene.move(empty, 'complete');
    expect(await isDrained({ runId: empty.id })).toBe(true);
    await scene.move(run, 'reopen');
    await move(scene, stage, 'fail');
    for (const of of [{ runId: run.id }, { stageId: stage.id }]) expect(await isDrained(of)).toBe(true);
  });

  it('Q2: a claim without run and stage is never drained', async () => {
    const { scene, run, stage, isDrained } = await fresh();
    await close(scene, stage);
    expect(await isDrained({})).toBe(false);
    await move(scene, stage, 'complete');
    await scene.move(run, 'complete');
    expect(await isDrained({})).toBe(false);
  });

  it('N1: an unknown stage, or one of another namespace or a deleted run, is STAGE_NOT_FOUND', async () => {
    const { scene, run, stage } = await fresh();
    const nobody = crypto.randomUUID();
    expect((await refusalOf(close(scene, { id: nobody }))).metadata).toEqual({ stage: nobody });
    expect((await refusalOf(close(new RolloutScene(on.store), stage))).reason).toBe('STAGE_NOT_FOUND');
    await scene.store.deleteRun(scene.namespace, run.id, 'REFUSE', false);
    expect((await refusalOf(close(scene, stage))).reason).toBe('STAGE_NOT_FOUND');
  });

  it('Q2: after a close has returned, no concurrent call creates a rollout, also over two servers', async () => {
    const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
    try {
      for (let round = 0; round < 6; round += 1) {
        const { scene, stage } = await fresh();
        const elsewhere = new RolloutScene(other, scene.namespace);
        const count = async () => (await scene.rollouts({ stageId: stage.id })).length;
        const creating = Array.from({ length: 12 }, async (_, i) => {
          try {
            await (i % 2 === 0 ? scene : elsewhere).makeRollouts(stage, [{ groupNumber: BigInt(i) }]);
            return 'created';
          } catch (error) {
            if (error instanceof AnabranchError) return error.reason;
            throw error;
          }
        });
        const closing = round % 2 === 0 ? close(elsewhere, stage) : move(elsewhere, stage, 'complete');
        const atClose = await closing.then(count);
        const outcomes = await Promise.all(creating);
        expect(await count()).toBe(atClose);
        expect(outcomes.filter((outcome) => outcome === 'created')).toHaveLength(atClose);
        expect(outcomes.filter((outcome) => outcome === 'QUEUE_CLOSED')).toHaveLength(12 - atClose);
      }
    } finally {
      if (other !== on.store) await other.close();
    }
  });
});

describe('the order of a close and of calls that create rollouts, on postgres', () => {
  let database: TestDatabase;
  let store: Store;
  let other: pg.Client;

  beforeAll(async () => {
    database = await createMigratedDatabase('postgres');
    store = await openOn(database);
    other = new pg.Client(database.url);
    await other.connect();
    await other.query('set search_path to anabranch');
  });
  afterAll(async () => {
    await other?.end();
    await store?.close();
    await database?.drop();
  });

  const waiting = () => waitingForLocks(async (text) => (await other.query(text)).rows, 1);

  it.each(['close', 'complete'] as const)('Q2: %s waits for a transaction that creates rollouts', async (verb) => {
    const scene = new RolloutScene(store);
    const { stage } = await scene.place();
    await other.query(`begin; select 1 from stages where key = ${stage.key} for key share`);
    const closing = verb === 'close' ? close(scene, stage) : move(scene, stage, verb);
    try {
      await waiting();
    } finally {
      await other.query('commit');
    }
    expect((await closing).queueCloseTime).toBeDefined();
  });

  it('Q2: a call that would create a rollout waits for a concurrent close, and then fails', async () => {
    const scene = new RolloutScene(store);
    const { stage } = await scene.place();
    await other.query(`begin; select 1 from stages where key = ${stage.key} for update;
      update stages set queue_close_time = now() where key = ${stage.key}`);
    const refusal = refusalOf(scene.queue(stage, 1));
    try {
      await waiting();
    } finally {
      await other.query('commit');
    }
    expect((await refusal).reason).toBe('QUEUE_CLOSED');
  });
});
