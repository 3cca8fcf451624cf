import { DatabaseSync } from 'node:sqlite';
import { expect, it, vi } from 'vitest';
import { addAggregates } from '../../src/store/sqlite/connection.ts';
import { makeInterruptible } from '../../src/store/sqlite/interruption.ts';
import { ReadThreads } from '../../src/store/sqlite/read_threads.ts';
import { describeStore, describeStoreOn } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { Scene } from './scene.ts';
import { sqlitePath } from './sql.ts';
import { sqliteTextsByThread } from './statement_count.ts';

const PAGE = { limit: 20, after: undefined };
const NO_FILTER = { experimentId: undefined, stageKinds: [], taskIds: [], runLabels: new Map(), labels: new Map() };
const SORTS = (['NUMBER', 'REWARD', 'TIME'] as const).map((by) => ({ by, descending: true }));

/** Reads of every kind whose cost can grow with the stored data. */
async function readMuch(here: RolloutScene): Promise<void> {
  const { store, namespace } = here;
  const scene = new Scene(store, namespace);
  const root = await scene.createWith(['a', 'b', 'c'], { taskId: 'T' });
  const leaf = await scene.get((await scene.branch(root, 1n)).id);
  const run = await here.makeRun({ status: 'RUNNING' });
  const stage = await here.stage(run, { status: 'RUNNING' });
  await here.queue(stage, 3);
  const { tree } = root.ref;
  const lineage = [{ key: root.ref.key, from: 0n, to: 3n }];
  const range = { from: 0n, to: 3n, maxSteps: 9, maxBytes: 1e6 };
  await store.readSteps(namespace, tree, lineage, range, 'FULL');
  await store.readOutlines(namespace, tree, lineage, 0n, 9);
  for (const sort of SORTS) {
    for (const of of [{ tree, lineage }, { taskId: 'T' }, { runId: run.id }]) {
      await store.listSteps(namespace, { of, hasState: true }, sort, { ...PAGE, maxBytes: 1e6 }, 'FULL');
    }
  }
  await store.findCheckpoint(namespace, tree, lineage, 9n, ['env', 'memory']);
  await store.listStepStates(namespace, tree, lineage, { name: 'env', from: 0n, limit: 9 });
  await store.getLineage(namespace, leaf.ref);
  await store.listTree(namespace, tree, PAGE);
  await store.listTrajectories(namespace, { labels: new Map([['k', 'v']]) }, PAGE);
  await store.listTags(namespace, root.id, PAGE);
  await store.listRunTree(namespace, run.id, PAGE);
  await store.listRunTrees(namespace, run.experiment.id, PAGE);
  await store.tallyRuns(namespace, [run.key]);
  await store.logMetrics(namespace, run.id, [{ name: 'm', metricStep: 1n, value: 1, stageId: undefined }]);
  const series = await store.listSeries(namespace, { runs: [run.id], names: ['m'], stage: 'none' }, 10, undefined);
  const [key = 0n] = series.map((one) => one.key);
  await store.measureSeries(namespace, [key], { from: undefined, to: undefined });
  const extent = { points: 3n, nans: 1n, firstStep: 0n, lastStep: 9n, lastValue: 1 };
  await store.downsample(namespace, [{ key, extent }], 6);
  await store.readPoints(namespace, key, { from: 0n, to: 9n }, 10);
  await store.listStatusChanges(namespace, { noun: 'RUN', id: run.id }, PAGE, true);
  const seen = await store.readRunChanges(namespace, run.id, undefined, true);
  await store.readRunChanges(namespace, run.id, seen?.horizon, true);
  await store.summarize(namespace, { ...NO_FILTER, runs: [run.id] }, ['TASK']);
  await store.summarizeTrajectories(namespace, { ...NO_FILTER, runs: [run.id] }, ['TASK']);
  await store.summarizeTrajectories(namespace, { ...NO_FILTER, runs: [] }, []);
  for (const of of [{ runId: run.id }, { stageId: stage.id }]) await here.rollouts(of, { minReward: 1 }, 20, undefined);
}

describeStoreOn(['sqlite'], 'A6: the look at whether a statement is still wanted', (on) => {
  it('the interruption condition does not change which indexes SQLite uses', async () => {
    const { reading } = await sqliteTextsByThread(() => readMuch(new RolloutScene(on.store)));
    expect(reading.length).toBeGreaterThan(20);
    const [plain, interruptible] = [open(), open()];
    makeInterruptible(interruptible, () => undefined);
    const plansBy = (database: DatabaseSync) => reading.map((text) => [text, planOf(database, text)]);
    expect(plansBy(interruptible)).toEqual(plansBy(plain));
    plain.close();
    interruptible.close();
  });

  it('the interruption condition works for any table of a statement, whatever its index and conditions', () => {
    const database = new DatabaseSync(':memory:');
    database.exec(`create table rowids (number integer, word text); create index by_word on rowids (word);
      create table keyed (one integer, other integer, primary key (one, other)) without rowid;
      with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000)
      insert into rowids select i * 64, 'word ' || i from n; insert into keyed select number, 64 from rowids`);
    let looks = 0;
    makeInterruptible(database, () => {
      looks += 1;
    });
    for (const text of [
      'select count(*) from rowids where number > 0',
      `select count(*) from rowids where word > 'a'`,
      'select max(other) from keyed where one > 0 and other > 0',
      'select count(*) from keyed as a cross join rowids as b where a.one = 64 and b.number > 0',
      'select count(*) from rowids as a cross join keyed as b where a.number = 64 and b.other = 64 and b.one > 0',
    ]) {
      looks = 0;
      database.prepare(text).all();
      expect(looks, text).toBeGreaterThan(2);
    }
    database.close();
  });

  it('the interruption condition is added for every table that can grow without bound', () => {
    const database = open();
    makeInterruptible(database, () => undefined);
    const viewed = database.prepare('select name from temp.sqlite_schema').all();
    expect(viewed.map(({ name }) => name)).toEqual(
      expect.arrayContaining(['steps', 'state_refs', 'trajectories', 'metric_points', 'rollouts', 'status_changes']),
    );
    database.close();
  });

  function open(): DatabaseSync {
    const database = new DatabaseSync(sqlitePath(on.database), { readOnly: true });
    addAggregates(database);
    return database;
  }
});

describeStoreOn(['sqlite'], 'A5: reads of one store', (on) => {
  it('reads run in parallel: one that never ends delays no other', async () => {
    const { namespace } = on.scene();
    const run = vi.spyOn(ReadThreads.prototype, 'run').mockReturnValueOnce(new Promise(() => undefined));
    void on.store.listTrajectories(namespace, {}, PAGE);
    await expect.poll(() => run.mock.calls.length).toBe(1);
    expect(await on.store.listTrajectories(namespace, {}, PAGE)).toEqual([]);
    run.mockRestore();
  });
});

describeStore('A6: a store within one call', (on) => {
  it('refuses everything once the call has ended, and stores nothing', async () => {
    const { caller, namespace } = on.scene();
    const reason = new Error('the deadline has passed');
    const within = on.store.within({ signal: AbortSignal.abort(reason) });
    const scene = new Scene(within, namespace);
    await expect(scene.create()).rejects.toBe(reason);
    await expect(within.listTrajectories(namespace, {}, PAGE)).rejects.toBe(reason);
    await expect(within.getExperiment(caller.namespace, { name: 'default' })).rejects.toBe(reason);
    expect(await on.store.listTrajectories(namespace, {}, PAGE)).toEqual([]);
  });

  it('works normally while the call is in progress', async () => {
    const { signal } = new AbortController();
    const outer = on.scene();
    const inner = new Scene(on.store.within({ signal }), outer.namespace);
    const made = await inner.createWith(['a', 'b']);
    expect((await outer.get(made.id)).nextStepNumber).toBe(2n);
    expect(await inner.get(made.id)).toEqual(await outer.get(made.id));
  });
});

/**
 * The steps of a plan, without the names of tables, since a view shows the name of the table in place of its alias. For
 * EXISTS, SQLite searches the same whether it is part of a join or a subquery.
 */
function planOf(database: DatabaseSync, text: string): string[] {
  const details = database
    .prepare(`explain query plan ${text}`)
    .all()
    .map(({ detail }) => String(detail));
  return (
    details
      .filter((detail) => !detail.startsWith('CORRELATED SCALAR SUBQUERY'))
      .map((detail) => detail.replace(/^(SEARCH|SCAN) \S+(?: EXISTS)?/, '$1'))
      // SQLite numbers subqueries, and views add some.
      .map((detail) => detail.replace(/\(subquery-\d+\)/, '(subquery)'))
  );
}
