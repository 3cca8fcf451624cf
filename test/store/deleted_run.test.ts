import pg from 'pg';
import { expect, it } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { makeStep } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore, describeStoreOn, type OnStore } from './on_store.ts';
import { RolloutScene, tokenOf } from './rollout_scene.ts';
import { countRows, waitingForLocks } from './sql.ts';

async function left(on: OnStore, { namespace }: RolloutScene): Promise<[string, number][]> {
  await collectUnused(on.store);
  return Object.entries(await countRows(on.sql, namespace)).filter(([, count]) => count > 0);
}

async function purgeAll(store: Store): Promise<void> {
  while (await store.purgeDeleted(50));
}

describeStore('background work during the purge of a run', (on) => {
  it('Q3, B4: lease sweeps skip a deleted run, and the purge removes all its rows', async () => {
    const here = new RolloutScene(on.store);
    const { run, stage } = await here.place();
    await here.queue(stage, 30);
    for (const { trajectory } of await here.claims({ runId: run.id, count: 20, leaseMs: 1 })) {
      await here.append(await here.get(trajectory.id), [makeStep(0n)]);
    }
    await on.store.deleteRun(here.namespace, run.id, 'CASCADE', true);
    const changes = async () => (await countRows(on.sql, here.namespace)).status_changes;
    const before = await changes();
    expect(await on.store.sweepLeases(100)).toBe(0);
    expect(await changes()).toBe(before);
    while (await on.store.purgeDeleted(20)) expect(await on.store.sweepLeases(100)).toBe(0);
    await on.store.deleteExperiment(here.namespace, run.experiment.id, 'CASCADE');
    await purgeAll(on.store);
    expect(await left(on, here)).toEqual([]);
  });

  it('B4: a trajectory that a claim created while its run was being deleted is purged with the run', async () => {
    const here = new RolloutScene(on.store);
    const { run, stage } = await here.place();
    await here.queue(stage, 3);
    const [claim] = await here.claims({ runId: run.id });
    await on.store.deleteExperiment(here.namespace, run.experiment.id, 'CASCADE', true);
    // A claim that took its rollout before the deletion, and commits after it, does not see that the run is deleted.
    await on.sql.rows(`update trajectories set hidden = false, purging = false where id = '${claim!.trajectory.id}'`);
    await purgeAll(on.store);
    expect(await left(on, here)).toEqual([]);
  });
});

describeStoreOn(['postgres'], 'B4: a deletion of a run that commits while others wait', (on) => {
  /** Blocks writers to a table until it is released. */
  async function gateOf(table: string): Promise<{ readonly client: pg.Client; open(): Promise<void> }> {
    const client = new pg.Client(on.database.adminUrl);
    await client.connect();
    await client.query('begin');
    await client.query(`lock table anabranch.${table} in share mode`);
    return {
      client,
      async open() {
        await client.query('commit');
        await client.end();
      },
    };
  }

  it('Q2: HeartbeatRollouts extends the other leases, but not those of the run', async () => {
    const here = new RolloutScene(on.store);
    const [one, other] = [await here.place(), await here.place()];
    for (const { stage } of [one, other]) await here.queue(stage, 1);
    const [ofDeletedRun] = await here.claims({ runId: one.run.id });
    const [kept] = await here.claims({ runId: other.run.id });
    const gate = await gateOf('runs');
    const deleting = on.store.deleteRun(here.namespace, one.run.id, 'CASCADE', true);
    await waitingForLocks((text) => gate.client.query(text).then(({ rows }) => rows), 1);
    const heartbeat = here.heartbeat([tokenOf(ofDeletedRun!), tokenOf(kept!)]);
    await waitingForLocks((text) => gate.client.query(text).then(({ rows }) => rows), 2);
    await gate.open();
    await deleting;
    expect(await heartbeat).toMatchObject([
      { id: ofDeletedRun!.rollout.id, kept: false, status: undefined, runStatus: undefined },
      { id: kept!.rollout.id, kept: true, runStatus: 'RUNNING' },
    ]);
  });

  it('a verb on an ended rollout, which the deletion does not lock, stores nothing, and the purge waits for it', async () => {
    const here = new RolloutScene(on.store);
    const { run, stage } = await here.place();
    await here.queue(stage, 1);
    const [claim] = await here.claims({ runId: run.id });
    await here.complete(claim!);
    const gate = await gateOf('validation_overrides');
    const override = { success: true, reason: 'seen', actor: '' };
    const overriding = on.store
      .overrideValidation(here.caller, claim!.rollout.id, undefined, override)
      .catch((error) => error);
    await waitingForLocks((text) => gate.client.query(text).then(({ rows }) => rows), 1);
    await on.store.deleteExperiment(here.namespace, run.experiment.id, 'CASCADE');
    const purging = purgeAll(on.store);
    await waitingForLocks((text) => gate.client.query(text).then(({ rows }) => rows), 2);
    await gate.open();
    expect(await overriding).toMatchObject({ reason: 'ROLLOUT_NOT_FOUND' });
    await purging;
    expect(await left(on, here)).toEqual([]);
  });
});
