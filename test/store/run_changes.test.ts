import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { runHint } from '../../src/domain/change.ts';
import type { Run } from '../../src/domain/run.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { describeStore, openOn } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { RunScene, SILENT, substepPlan } from './run_scene.ts';
import { Watcher } from './run_watcher.ts';

describeStore('changes of a run', (on) => {
  const scene = () => new RunScene(on.store);

  async function hintsOf(work: () => Promise<unknown>): Promise<unknown[]> {
    const heard: unknown[] = [];
    const stop = on.store.onChange((hint) => heard.push(hint));
    await work();
    stop();
    return heard;
  }

  it('M5: the snapshot contains the current run, its open stages, and the counts of its progress', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a'], { plan: substepPlan(3, 2), configJson: '{"a":1}' });
    const first = await here.stage(run, { number: 0n, status: 'RUNNING' });
    for (const number of [1n, 2n]) await here.stage(run, { number, status: 'RUNNING' });
    await here.store.moveStage(here.caller, first.id, 'complete', SILENT);
    const snapshot = await new Watcher(here, run).read();
    expect(snapshot.run).toEqual({ ...(await here.run(run.id)), configJson: '', configOverridesJson: '' });
    expect(snapshot.stages.map(({ number }) => number)).toEqual([1n, 2n]);
    expect(await new Watcher(here, run).news(true)).toEqual(['0@2', '1@1', '2@1']);
    expect(snapshot.tally).toEqual((await here.store.tallyRuns(here.namespace, [run.key])).get(run.key));
    expect(snapshot.tally.openStages).toHaveLength(2);
  });

  it('M5: after a horizon, stages that changed are returned in their current state, ended ones too; the run always', async () => {
    const here = scene();
    const run = await here.makeRun();
    const a = await here.stage(run, { number: 0n, status: 'RUNNING' });
    const b = await here.stage(run, { number: 1n });
    const [watcher, late] = [new Watcher(here, run), new Watcher(here, run)];
    expect(await watcher.news()).toEqual(['0@1', '1@1']);
    await late.news();
    expect(await watcher.news()).toEqual([]);
    await here.store.updateStage(here.namespace, a.id, { phase: 'x' });
    await here.store.moveStage(here.caller, a.id, 'complete', SILENT);
    const next = await watcher.read();
    expect(next.stages.find(({ id }) => id === a.id)).toMatchObject({ status: 'COMPLETED', phase: 'x', revision: 3n });
    expect(watcher.run).toMatchObject({ status: 'PENDING', revision: 1n });
    await here.move(run, 'start');
    await here.store.updateStage(here.namespace, b.id, { completedSubsteps: 3n });
    await here.stage(run, { number: 2n });
    expect(await watcher.news()).toContain('1@2');
    expect(watcher.run).toMatchObject({ status: 'RUNNING', revision: 2n });
    // A watcher that polls less often reads all of it, in creation order.
    expect(await late.news()).toEqual(['0@3', '1@2', '2@1']);
  });

  it('M5: changes that were read are not read again', async () => {
    const here = scene();
    const run = await here.makeRun();
    await here.stage(run);
    const watcher = new Watcher(here, run);
    expect(await watcher.news()).toEqual(['0@1']);
    expect((await watcher.read()).stages).toEqual([]);
  });

  it('M5: changes of other runs are not returned', async () => {
    const here = scene();
    const [run, other] = [await here.makeRun(), await here.makeRun()];
    const watcher = new Watcher(here, run);
    await watcher.read();
    await here.stage(other);
    expect((await watcher.read()).stages).toEqual([]);
  });

  it('M5: a reader that polls while twenty writers change twenty stages ends with the state of the tables', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    const stages = await Promise.all(Array.from({ length: 20 }, (_, i) => here.stage(run, { number: BigInt(i) })));
    const watcher = new Watcher(here, run);
    let writing = true;
    const writers = Promise.all(
      stages.map(async ({ id }, i) => {
        for (let n = 0; n < 5 + (i % 3); n += 1) {
          await here.store.updateStage(here.namespace, id, { phase: `${n}` });
        }
      }),
    ).finally(() => {
      writing = false;
    });
    while (writing) await watcher.news();
    await writers;
    await watcher.news();
    expect(watcher.picture).toEqual(new Map(stages.map(({ id }, i) => [id, BigInt(6 + (i % 3))])));
  });

  it('M5: every write to a run notifies listeners and has a new revision', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a'], { failWhenStale: true, heartbeatTimeoutMs: 1 });
    const writes: Record<string, () => Promise<unknown>> = {
      start: () => here.move(run, 'start'),
      update: () => here.store.updateRun(here.namespace, run.id, { phase: 'x' }),
      heartbeat: () => here.store.heartbeatRun(here.namespace, run.id),
      sweep: () => expect.poll(() => here.store.failStaleRuns(10)).toBeGreaterThan(0),
    };
    let { revision } = run;
    for (const [name, write] of Object.entries(writes)) {
      const heard = await hintsOf(write);
      expect(heard, name).toContain(runHint(run.key));
      revision += 1n;
      expect(await here.run(run.id), name).toMatchObject({ revision });
    }
    // A verb that has taken effect already changes nothing.
    const failed = await here.run(run.id);
    expect(await hintsOf(() => here.move(run, 'fail', { message: failed.statusMessage }))).not.toContain(run.key);
  });

  it('M5: listeners are notified of new runs and branches too', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a']);
    const keys: bigint[] = [];
    const heard = await hintsOf(async () => {
      keys.push((await here.makeRun()).key, (await here.branchOff(run, 0n)).run.key);
    });
    for (const key of keys) expect(heard).toContain(runHint(key));
  });

  it('an unknown run has no changes', async () => {
    const here = scene();
    expect(await here.store.readRunChanges(here.namespace, crypto.randomUUID(), undefined, false)).toBeUndefined();
  });
});

/** Ends the connections on which stores listen for changes, as a failover of the server does. */
async function endListeners({ adminUrl }: TestDatabase): Promise<void> {
  const client = new pg.Client(adminUrl);
  await client.connect();
  await client.query(`select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and application_name = 'anabranch listener'`);
  await client.end();
}

/** A transaction from outside, like that of another instance. */
class Outside {
  readonly #client: pg.Client;

  private constructor(client: pg.Client) {
    this.#client = client;
  }

  static async begin({ url }: TestDatabase): Promise<Outside> {
    const client = new pg.Client(url);
    // A failing test drops its database while this transaction is open.
    client.on('error', () => undefined);
    await client.connect();
    await client.query('begin');
    return new Outside(client);
  }

  async query(text: string, values: unknown[] = []): Promise<unknown[]> {
    return (await this.#client.query(text, values)).rows;
  }

  /** Changes a stage with the same statements as the store. */
  async change(stageId: string): Promise<void> {
    await this.query(
      `update anabranch.stages set phase = 'late', revision = revision + 1, mark = pg_current_xact_id()::text::bigint where id = $1`,
      [stageId],
    );
  }

  async end(how: 'commit' | 'rollback'): Promise<void> {
    await this.#client.query(how);
    await this.#client.end();
  }
}

describe('changes that commit late, on postgres', () => {
  /** A run with this many stages, and a watcher that has read them. */
  async function watched(here: RunScene, count: number): Promise<{ ids: string[]; watcher: Watcher }> {
    const run = await here.makeRun();
    const ids: string[] = [];
    for (let i = 0; i < count; i += 1) ids.push((await here.stage(run, { number: BigInt(i) })).id);
    const watcher = new Watcher(here, run);
    expect(await watcher.news()).toHaveLength(count);
    return { ids, watcher };
  }

  it('M5: of two open transactions the one that started first and commits last is not missed, whatever commits in between', async () => {
    await using database = await createMigratedDatabase('postgres');
    const store = await openOn(database);
    const here = new RunScene(store);
    const { ids, watcher } = await watched(here, 3);
    const [one, two, three] = ids as [string, string, string];
    const early = await Outside.begin(database);
    await early.change(one);
    const late = await Outside.begin(database);
    await late.change(two);
    expect(await watcher.news()).toEqual([]);
    await late.end('commit');
    // A third transaction of the store commits meanwhile.
    await store.updateStage(here.namespace, three, { phase: 'x' });
    expect(await watcher.news()).toEqual(['1@2', '2@2']);
    expect(await watcher.news()).toEqual([]);
    await early.end('commit');
    expect(await watcher.news()).toEqual(['0@2']);
    await store.close();
  });

  it('M5: a row that an earlier transaction changes last is returned again, although its mark decreases', async () => {
    await using database = await createMigratedDatabase('postgres');
    const store = await openOn(database);
    const here = new RunScene(store);
    const { ids, watcher } = await watched(here, 2);
    const [one, two] = ids as [string, string];
    const early = await Outside.begin(database);
    // From here on the transaction is known to be open, and its mark is the lowest.
    await early.query('select pg_current_xact_id()');
    await store.updateStage(here.namespace, one, { phase: 'x' });
    expect(await watcher.news()).toEqual(['0@2']);
    await early.change(one);
    await early.end('commit');
    await store.updateStage(here.namespace, two, { phase: 'x' });
    expect(await watcher.news()).toEqual(['0@3', '1@2']);
    await store.close();
  });

  it('M5: changes that are rolled back are never returned, and do not hold others back', async () => {
    await using database = await createMigratedDatabase('postgres');
    const store = await openOn(database);
    const here = new RunScene(store);
    const { ids, watcher } = await watched(here, 2);
    const [one, two] = ids as [string, string];
    const undone = await Outside.begin(database);
    await undone.change(one);
    await store.updateStage(here.namespace, two, { phase: 'x' });
    expect(await watcher.news()).toEqual(['1@2']);
    await undone.end('rollback');
    expect((await watcher.read()).stages).toEqual([]);
    await store.close();
  });

  it('M5: with a transaction that stays open, a read returns what changed since the previous read, and no more', async () => {
    await using database = await createMigratedDatabase('postgres');
    const store = await openOn(database);
    const here = new RolloutScene(store);
    const { run, stage } = await here.place();
    const { ids } = await watched(here, 1);
    const idle = await Outside.begin(database);
    await idle.change(ids[0]!);
    const watcher = new Watcher(here, run);
    await watcher.read();
    for (let round = 0n; round < 3n; round += 1n) {
      await here.queue(stage, 20, { groupNumber: round });
      await here.store.updateStage(here.namespace, stage.id, { phase: `${round}` });
      expect(await watcher.changed()).toEqual({ stages: 1, groups: 1, rollouts: 20 });
      expect(await watcher.changed()).toEqual({ stages: 0, groups: 0, rollouts: 0 });
    }
    await idle.end('commit');
    await store.close();
  });

  it('M5: after the connection to the database was lost, a read returns everything, and the next one only changes', async () => {
    await using database = await createMigratedDatabase('postgres');
    const store = await openOn(database);
    const here = new RolloutScene(store);
    const { run, stage } = await here.place();
    await here.queue(stage, 3);
    await here.store.moveStage(here.caller, stage.id, 'complete', SILENT);
    const watcher = new Watcher(here, run);
    await watcher.read();
    expect(await watcher.changed()).toEqual({ stages: 0, groups: 0, rollouts: 0 });
    await endListeners(database);
    await expect.poll(() => watcher.changed(), { timeout: 20_000 }).toEqual({ stages: 1, groups: 1, rollouts: 3 });
    // The loss of one connection may be reported more than once.
    await expect.poll(() => watcher.changed(), { timeout: 20_000 }).toEqual({ stages: 0, groups: 0, rollouts: 0 });
    await store.close();
  });

  it('M5: a verb of the store that commits late is not missed by another instance', async () => {
    await using database = await createMigratedDatabase('postgres');
    const [store, other] = [await openOn(database), await openOn(database)];
    const here = new RunScene(store);
    const { ids } = await watched(here, 2);
    const [one, two] = ids as [string, string];
    const [run] = await here.runs();
    const watcher = new Watcher(new RunScene(other, here.namespace), run as Run);
    await watcher.news();
    // A verb writes its row, then its StatusChange, which waits here.
    const gate = await Outside.begin(database);
    await gate.query('lock table anabranch.status_changes in share mode');
    const moving = store.moveStage(here.caller, one, 'start', SILENT);
    const waiting = `select 1 from pg_locks where relation = 'anabranch.status_changes'::regclass and not granted`;
    await expect.poll(() => gate.query(waiting)).toHaveLength(1);
    await store.updateStage(here.namespace, two, { phase: 'x' });
    expect(await watcher.news()).toEqual(['1@2']);
    await gate.end('commit');
    await moving;
    expect(await watcher.news()).toEqual(['0@2']);
    await store.close();
    await other.close();
  });
});
