import { setTimeout } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Claim } from '../../src/store/contract/rollout.ts';
import type { Store } from '../../src/store/contract/store.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { wordStep } from '../support/steps.ts';
import { openOn } from './on_store.ts';
import { claimed, describeClaims, RolloutScene, tokenOf } from './rollout_scene.ts';
import { statementsOf, textsOf } from './statement_count.ts';

describeClaims('concurrent claims', (scenes, on) => {
  const fresh = async () => {
    const scene = scenes();
    return { scene, ...(await scene.place()) };
  };

  it('Q4, F2: of many concurrent claims none gets the rollout of another, and the whole queue is claimed', async () => {
    const { scene, stage } = await fresh();
    const ids = await scene.queue(stage, 60);
    const claimedIds: string[] = [];
    await Promise.all(
      Array.from({ length: 12 }, async (_, worker) => {
        for (let left = 60; left > 0; left -= 1) {
          const requests = Array.from({ length: 1 + (worker % 3) }, () => scene.request({ workerId: `w${worker}` }));
          const outcomes = await scene.store.claimRollouts(requests);
          const claims = outcomes.flatMap((outcome) => [...claimed(outcome).claims]);
          if (claims.length === 0) return;
          claimedIds.push(...claims.map(({ rollout }) => rollout.id));
        }
      }),
    );
    expect([...claimedIds].sort()).toEqual([...ids].sort());
    for (const id of ids) expect((await scene.record(id)).attempts).toHaveLength(1);
  });

  it('F2: with random crashes, delays, retries and ends, every attempt is accounted for and has one end', async () => {
    const { scene, stage } = await fresh();
    const ids = await scene.queue(stage, 24, { maxAttempts: 100 });
    const completed = new Map<string, number>();
    const work = async (claim: Claim, count: number) => {
      await scene.start(claim).catch(refused);
      await scene.append(claim.trajectory, [wordStep(0n, 'a')]).catch(refused);
      if (count % 3 === 0) return scene.release(tokenOf(claim)).catch(refused);
      if (count % 5 === 0) return;
      await scene.complete(claim).then(({ id }) => completed.set(id, (completed.get(id) ?? 0) + 1), refused);
    };
    const refused = (error: { reason?: string }) => {
      expect(['LEASE_LOST', 'TRAJECTORY_SEALED']).toContain(error.reason);
    };
    let count = 0;
    const deadline = performance.now() + 45_000;
    await Promise.all(
      Array.from({ length: 8 }, async () => {
        while (completed.size < ids.length && performance.now() < deadline) {
          const [claim] = await scene.claims({ leaseMs: 300 });
          count += 1;
          if (claim !== undefined) await work(claim, count);
          await on.store.sweepLeases(100);
          // Until the lease of an abandoned claim ends there may be nothing to claim.
          if (claim === undefined) await setTimeout(20);
        }
      }),
    );
    for (const id of ids) {
      expect(completed.get(id)).toBe(1);
      const { rollout, attempts } = await scene.record(id);
      expect(rollout.status).toBe('COMPLETED');
      expect(attempts.map(({ number }) => number)).toEqual(attempts.map((_, i) => i + 1));
      expect(attempts.map(({ status }) => status)).toEqual(
        attempts.map((_, i) => (i === attempts.length - 1 ? 'COMPLETED' : 'FAILED')),
      );
      for (const { trajectoryId } of attempts) expect((await scene.get(trajectoryId)).status).not.toBe('RUNNING');
      const history = await scene.history('ROLLOUT', { id });
      expect(history.filter(({ newStatus }) => newStatus === 'INITIALIZING')).toHaveLength(attempts.length);
    }
  });

  it('the number of statements of a claim does not depend on claimed rollouts, callers or queue length', async () => {
    const { scene, stage } = await fresh();
    await scene.task('t');
    await scene.queue(stage, 300, { taskId: 't' });
    const cost = (count: number) =>
      statementsOf(on.engine, async () => {
        const requests = Array.from({ length: count }, (_, i) => scene.request({ workerId: `${i}` }));
        for (const outcome of await scene.store.claimRollouts(requests))
          expect(claimed(outcome).claims).toHaveLength(1);
      });
    const few = await cost(2);
    const many = await cost(64);
    expect(few).toBeLessThan(30);
    // Rows are sent one statement each on Postgres; on SQLite no statement waits for another.
    if (on.engine === 'postgres') expect(many).toBeLessThanOrEqual(few + 4);
  });
});

/** Only on Postgres can one transaction lock rows while others proceed; SQLite runs one write transaction at a time. */
describe('rollouts that another transaction locks, on postgres', () => {
  let database: TestDatabase;
  let store: Store;
  let second: Store;
  let other: pg.Client;

  beforeAll(async () => {
    database = await createMigratedDatabase('postgres');
    [store, second] = [await openOn(database), await openOn(database)];
    other = new pg.Client(database.url);
    await other.connect();
    await other.query('set search_path to anabranch');
  });
  afterAll(async () => {
    await other?.end();
    await second?.close();
    await store?.close();
    await database?.drop();
  });

  it('Q5: planner settings of a claim are set before its first query', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 3);
    const texts = await textsOf(() => scene.claims({ stageId: stage.id }));
    const [begin, settings] = texts;
    expect(begin).toBe('begin');
    expect(settings).toContain(`set_config('plan_cache_mode', 'force_generic_plan', true)`);
    expect(texts.at(-1)).toBe('commit');
  });

  async function holding<T>(statement: string, work: () => Promise<T>): Promise<T> {
    await other.query('begin');
    try {
      await other.query(statement);
      return await work();
    } finally {
      await other.query('rollback');
    }
  }

  async function fresh(on: Store = store) {
    const scene = new RolloutScene(on);
    return { scene, ...(await scene.place()) };
  }

  it('Q4: locked rollouts are skipped without waiting, and can be claimed after the lock is released', async () => {
    const { scene, stage } = await fresh();
    const [a = '', b = '', c = ''] = await scene.queue(stage, 3);
    // The lock is held until the claims are made.
    const claims = await holding(`select 1 from rollouts where id = '${a}' for update`, () =>
      scene.claims({ count: 2 }),
    );
    expect(claims.map(({ rollout }) => rollout.id)).toEqual([b, c]);
    expect((await scene.claimOne()).rollout.id).toBe(a);
  });

  it('Q4: a claim waits for no verb of its run or stage, and not for its group', async () => {
    const { scene, run, stage } = await fresh();
    await scene.queue(stage, 1);
    const claims = await holding(
      `select 1 from runs where key = ${run.key} for no key update; select 1 from stages where key = ${stage.key} for update;
       select 1 from groups where run = ${run.key} for update`,
      () => scene.claims(),
    );
    expect(claims).toHaveLength(1);
  });

  it('Q3: a rollout whose start point is locked by a deletion stays PENDING, and delays no other claim', async () => {
    const { scene, stage } = await fresh();
    const source = await scene.createWith(['a']);
    const [held = ''] = await scene.queue(stage, 1, { startFrom: { trajectoryId: source.id, stepNumber: 0n } });
    const [free = ''] = await scene.queue(stage, 1, { groupNumber: 1n });
    const claims = await holding(`select 1 from trajectories where key = ${source.ref.key} for update`, () =>
      scene.claims({ count: 2 }),
    );
    expect(claims.map(({ rollout }) => rollout.id)).toEqual([free]);
    expect((await scene.claimOne()).rollout.id).toBe(held);
  });

  it('Q3: the sweep skips rollouts and trajectories that are locked, until the next sweep', async () => {
    const { scene, stage } = await fresh();
    await scene.queue(stage, 3);
    const [a, b, c] = await scene.claims({ count: 3, leaseMs: 1 });
    await expect
      .poll(async () => (await scene.rollout(c!.rollout.id)).leaseEndTime! < BigInt(Date.now()) * 1_000_000n)
      .toBe(true);
    const swept = await holding(
      `select 1 from rollouts where key = ${a!.rollout.key} for update; select 1 from trajectories where key = ${b!.trajectory.ref.key} for no key update`,
      () => store.sweepLeases(10),
    );
    expect(swept).toBe(1);
    expect((await scene.rollout(c!.rollout.id)).status).toBe('PENDING');
    for (const claim of [a, b]) expect((await scene.rollout(claim!.rollout.id)).status).toBe('INITIALIZING');
    expect(await store.sweepLeases(10)).toBe(2);
  });

  it('B4: a run that is being deleted when its rollouts would be claimed is left alone', async () => {
    const { scene, run, stage } = await fresh();
    await scene.queue(stage, 1);
    await other.query(`update runs set hidden = true where key = ${run.key}`);
    expect(await scene.claims()).toEqual([]);
    await other.query(`update runs set hidden = false where key = ${run.key}`);
    expect(await scene.claims()).toHaveLength(1);
  });

  it('F2: two instances that claim from one queue, over several stages, never claim the same rollout', async () => {
    const { scene, run, stage } = await fresh();
    const stages = [stage, await scene.stage(run, { kind: 'EVAL', number: 0n, status: 'RUNNING' })];
    const ids = [];
    for (const place of stages) ids.push(...(await scene.queue(place, 40)));
    const twin = new RolloutScene(second, scene.namespace);
    const claimedIds: string[] = [];
    await Promise.all(
      [scene, twin].flatMap((side) =>
        Array.from({ length: 4 }, async () => {
          for (let left = 100; left > 0 && claimedIds.length < ids.length; left -= 1) {
            const claims = await side.claims({ count: 3 });
            claimedIds.push(...claims.map(({ rollout }) => rollout.id));
          }
        }),
      ),
    );
    expect([...claimedIds].sort()).toEqual(ids.sort());
  });

  it('Q5: claiming from the far end of a long queue costs no more, whatever the statistics say', async () => {
    const { scene, stage } = await fresh();
    for (let group = 0n; group < 5n; group += 1n) {
      await scene.makeRollouts(
        stage,
        Array.from({ length: 300 }, (_, i) => ({ groupNumber: group, number: BigInt(i) })),
      );
    }
    await other.query('analyze rollouts');
    const plan =
      await other.query(`begin; set local enable_sort = off; set local enable_bitmapscan = off; set local enable_seqscan = off;
      explain select * from rollouts as r where r.stage = ${stage.key} and r.status = 'PENDING' and r.claimable_time <= (select clock_timestamp())
      order by r.priority desc, r.key limit 32
      for no key update skip locked; rollback`);
    const lines = (plan as unknown as { rows: Record<string, string>[] }[])
      .flatMap(({ rows }) => rows)
      .map((row) => row['QUERY PLAN'])
      .join('\n');
    expect(lines).toContain('using rollouts_queue');
    expect(lines, 'what is delayed is passed over in the index').toMatch(/Index Cond: .*claimable_time <=/);
    expect(lines).not.toContain('Sort');
    expect(await scene.claims({ count: 32 })).toHaveLength(32);
  });
});
