import { expect, it } from 'vitest';
import type { Page } from '../../src/store/contract/request.ts';
import type { RolloutCursor, RolloutFilter } from '../../src/store/contract/rollout.ts';
import type { ChangeCursor, ChangedIn, Horizon } from '../../src/store/contract/run.ts';
import { makeStep } from '../support/steps.ts';
import { describeStoreOn } from './on_store.ts';
import { type PlanStep, plansOf } from './postgres_plans.ts';
import { RolloutScene } from './rollout_scene.ts';
import { sqliteTextsOf } from './statement_count.ts';

/**
 * Statistics that an operator made (`sqlite3 data.db ANALYZE`) may be outdated, from when there was little but one
 * large run.
 */
describeStoreOn(['sqlite'], 'plans of the pages of rollouts', (on) => {
  const scene = () => new RolloutScene(on.store);
  const fill = async (here: RolloutScene, stages: number, rollouts: number) => {
    const run = await here.makeRun({ status: 'RUNNING' });
    for (let i = 0; i < stages; i += 1) {
      const stage = await here.stage(run, { number: BigInt(i), status: 'RUNNING' });
      const places = Array.from({ length: rollouts }, (_, k) => ({
        groupNumber: BigInt(k >> 3),
        number: BigInt(k & 7),
      }));
      await here.makeRollouts(stage, places);
    }
    return run;
  };

  /** How SQLite finds a page: the plan step for each table in turn. */
  const planOf = async (page: () => Promise<unknown>): Promise<string[]> => {
    const text = (await sqliteTextsOf(page)).at(-1) ?? '';
    expect(text).toContain('"rollouts" as "r"');
    return (await on.sql.rows(`explain query plan ${text}`)).map(({ detail }) => String(detail));
  };

  const expectByIndex = async (here: RolloutScene, { id: runId }: { readonly id: string }) => {
    const [first] = await here.rollouts({ runId }, {}, 1);
    const { stage, group, number } = first!;
    const after: RolloutCursor = { stage: stage.key, groupNumber: group.number, number };
    const filters: Partial<RolloutFilter>[] = [
      {},
      { statuses: ['RUNNING', 'INITIALIZING'] },
      { taskId: 't' },
      { minReward: 1 },
    ];
    for (const [of, index] of [
      [{ runId }, /rollouts_by_place \(run=\?/],
      [{ stageId: stage.id }, /rollouts_by_place \(run=\? AND stage=\?/],
      [{ groupId: group.id }, /rollouts_by_number \(group_key=\?|rollouts_by_place \(run=\? AND stage=\?/],
    ] as const) {
      for (const filter of filters) {
        for (const cursor of [undefined, after]) {
          const plan = await planOf(() => here.rollouts(of, filter, 50, cursor));
          const told = JSON.stringify([of, filter, cursor !== undefined, plan], undefined, 1).replaceAll(/\d+n/g, '?');
          expect(
            plan.find((step) => /^(?:SEARCH|SCAN) r USING/.test(step)),
            told,
          ).toMatch(index);
          // In index order, so that the read ends with the page; a group is sorted.
          const inner = plan.slice(0, plan.indexOf('SCAN r'));
          if (!('groupId' in of)) expect(inner, told).not.toContain('USE TEMP B-TREE FOR ORDER BY');
          // Reads the page itself, and the rows that belong to each of its rows.
          expect(
            plan.filter((step) => /^SCAN (?!r$|x$|CONSTANT ROW$)|AUTOMATIC/.test(step)),
            told,
          ).toEqual([]);
        }
      }
    }
  };

  it('a page reads no more rows than it returns, with and without statistics', async () => {
    const here = scene();
    const large = await fill(here, 2, 1000);
    await fill(here, 2, 4);
    await expectByIndex(here, large);
    await on.sql.rows('analyze');
    await expectByIndex(here, large);
    const wide = await fill(here, 20, 50);
    await expectByIndex(here, wide);
    await on.sql.rows('analyze');
    await expectByIndex(here, large);
    for (let i = 0; i < 40; i += 1) await fill(here, 2, 4);
    await on.sql.rows('analyze');
    await expectByIndex(here, large);
    await expectByIndex(here, wide);
  });
});

describeStoreOn(['sqlite'], 'plans of the pages of rollouts across runs', (on) => {
  const planOf = async (page: () => Promise<unknown>): Promise<string[]> => {
    const text = (await sqliteTextsOf(page)).at(-1) ?? '';
    const plan = (await on.sql.rows(`explain query plan ${text}`)).map(({ detail }) => String(detail));
    return plan.slice(0, plan.indexOf('SCAN r'));
  };

  it('Q6: pages by task or worker use the index on these, in its order, with and without statistics', async () => {
    const here = new RolloutScene(on.store);
    const { stage } = await here.place();
    for (let i = 0; i < 20; i += 1) {
      await here.queue(stage, 20, { groupNumber: BigInt(i), taskId: await here.task(`t${i}`) });
      await here.claims({ count: 10, workerId: `w${i}`, stageId: stage.id });
    }
    const byTask = /^SEARCH r USING INDEX rollouts_by_task \(task=\?/;
    const byWorker = /^SEARCH a USING (?:COVERING )?INDEX attempts_by_worker \(namespace=\? AND worker_id=\?/;
    for (const analysed of [false, true]) {
      if (analysed) await on.sql.rows('analyze');
      for (const [filter, index] of [
        [{ taskId: 't3' }, byTask],
        [{ workerId: 'w3' }, byWorker],
        [{ workerId: 'w3', taskId: 't3' }, byWorker],
      ] as const) {
        for (const cursor of [undefined, { key: 1_000_000n }]) {
          const plan = await planOf(() => here.rollouts(undefined, filter, 50, cursor));
          const told = JSON.stringify([analysed, Object.keys(filter), cursor !== undefined, plan]);
          expect(
            plan.find((step) => /^(?:SEARCH|SCAN) [ra] /.test(step)),
            told,
          ).toMatch(index);
          expect(plan, told).not.toContain('USE TEMP B-TREE FOR ORDER BY');
        }
      }
    }
  });
});

describeStoreOn(['postgres'], 'plans of the reads of many rollouts', (on) => {
  const ROWS = 800;
  const ROLLOUTS_OF_GROUP = 8;
  const PAGE = 256;

  /**
   * A run without statistics: since nothing was ever analysed, Postgres estimates that every condition matches few
   * rows.
   */
  async function unanalysed(here: RolloutScene) {
    for (const table of await on.sql.tables())
      await on.sql.rows(`alter table ${table} set (autovacuum_enabled = false)`);
    const run = await here.makeRun({ status: 'RUNNING' });
    const since = (await here.store.readRunChanges(here.namespace, run.id, undefined, true))!.horizon;
    const stage = await here.stage(run, { status: 'RUNNING' });
    const places = Array.from({ length: ROWS }, (_, i) => ({
      groupNumber: BigInt(Math.floor(i / ROLLOUTS_OF_GROUP)),
      number: BigInt(i % ROLLOUTS_OF_GROUP),
    }));
    await here.makeRollouts(stage, places);
    for (const { trajectory } of await here.claims({ stageId: stage.id, count: 100 })) {
      await here.append(await here.get(trajectory.id), [makeStep(0n, { reward: 1 })]);
    }
    return { run, stage, since };
  }

  const expectByIndex = async (name: string, most: number, read: () => Promise<unknown>): Promise<void> => {
    const steps = (await plansOf(on.database, read)).flat();
    const told = `${name}: ${JSON.stringify(steps)}`;
    expect(
      steps.filter(({ node }) => /Seq Scan|Bitmap|Hash/.test(node)),
      told,
    ).toEqual([]);
    // Rows from several sources are merged or sorted; those are no more than a page.
    const counted = steps.filter(({ node, index }: PlanStep) => index !== undefined || node.includes('Sort'));
    expect(Math.max(...counted.map(({ rows }) => rows)), told).toBeLessThanOrEqual(most);
  };

  it('K-C6: a page costs in proportion to its rows, also before Postgres has any statistics', async () => {
    const here = new RolloutScene(on.store);
    const { run, stage, since } = await unanalysed(here);
    const { store, namespace } = here;
    const [first] = await here.rollouts({ runId: run.id }, {}, 1);
    const after = { stage: stage.key, groupNumber: 20n, number: 3n };
    const places: NonNullable<RolloutFilter['of']>[] = [
      { runId: run.id },
      { stageId: stage.id },
      { groupId: first!.group.id },
    ];
    for (const of of places) {
      for (const cursor of [undefined, after]) {
        await expectByIndex(`list ${Object.keys(of)}`, 51, () => here.rollouts(of, {}, 51, cursor));
      }
    }
    await here.task('wanted');
    await on.sql.rows(`update rollouts set task = (select key from tasks where id = 'wanted')`);
    for (const filter of [{ taskId: 'wanted' }, { workerId: 'worker' }]) {
      for (const cursor of [undefined, { key: 1_000_000n }]) {
        await expectByIndex(`list ${Object.keys(filter)}`, 51, () => here.rollouts(undefined, filter, 51, cursor));
      }
    }
    for (const cursor of [undefined, 20n]) {
      const list = () => store.listGroups(namespace, stage.id, { limit: 51, after: cursor }, 'BASIC');
      await expectByIndex('groups', 51 * ROLLOUTS_OF_GROUP, list);
    }
    for (const where of [
      { since: undefined, allStages: false },
      { since: undefined, allStages: true },
      { since, allStages: false },
      // With other transactions that stay open.
      { since: { ...since, open: [1n, 2n, 3n] }, allStages: false },
    ]) {
      let after: ChangeCursor | undefined;
      do {
        const page: Page<ChangeCursor> = { limit: PAGE, after };
        const groups = () => store.readChangedGroups(namespace, run.key, where, page);
        await expectByIndex('changed groups', PAGE * ROLLOUTS_OF_GROUP, groups);
        after = (await groups()).next;
      } while (after !== undefined);
      do {
        const page: Page<ChangeCursor> = { limit: PAGE, after };
        const rollouts = () => store.readChangedRollouts(namespace, run.key, where, page);
        // A page ends within a group, whose rollouts are all counted.
        await expectByIndex('changed rollouts', PAGE + 2 * ROLLOUTS_OF_GROUP, rollouts);
        after = (await rollouts()).next;
      } while (after !== undefined);
    }
  });

  it('M5: all pages of one read of changes read each row once, and the next read reads none', async () => {
    const here = new RolloutScene(on.store);
    const { run, since } = await unanalysed(here);
    const readAll = async (where: ChangedIn) => {
      const groups = await pagesOf((after) =>
        here.store.readChangedGroups(here.namespace, run.key, where, { limit: PAGE, after }),
      );
      const rollouts = await pagesOf((after) =>
        here.store.readChangedRollouts(here.namespace, run.key, where, { limit: PAGE, after }),
      );
      return [groups, rollouts].map((rows) => [rows.length, new Set(rows.map(({ key }) => key)).size]);
    };
    const horizon = (): Promise<Horizon> =>
      here.store.readRunChanges(here.namespace, run.id, undefined, true).then((read) => read!.horizon);
    const expected = [ROWS / ROLLOUTS_OF_GROUP, ROWS].map((count) => [count, count]);
    for (const where of [
      { since: undefined, allStages: false },
      { since, allStages: false },
    ]) {
      expect(await readAll(where)).toEqual(expected);
    }
    expect(await readAll({ since: await horizon(), allStages: false })).toEqual([
      [0, 0],
      [0, 0],
    ]);
  });

  async function pagesOf<Row>(
    read: (after: ChangeCursor | undefined) => Promise<{ rows: readonly Row[]; next: ChangeCursor | undefined }>,
  ): Promise<Row[]> {
    const all: Row[] = [];
    let after: ChangeCursor | undefined;
    do {
      const page = await read(after);
      all.push(...page.rows);
      after = page.next;
    } while (after !== undefined);
    return all;
  }
});

describeStoreOn(['sqlite', 'postgres'], 'plans of claims by id', (on) => {
  /** Steps of the plans that read rollouts. */
  const stepsOf = async (work: () => Promise<unknown>): Promise<string[]> => {
    if (on.engine === 'postgres') {
      const steps = (await plansOf(on.database, work)).flat().filter(({ table }) => table === 'rollouts');
      return steps.map(({ node, index, rows }) => `${node} ${index} of ${rows} rows`);
    }
    const texts = (await sqliteTextsOf(work)).filter((text) => /^select.*"rollouts" as "r"/.test(text));
    const plans = texts.map((text) => on.sql.rows(`explain query plan ${text.replace('anabranch_now()', "''")}`));
    return (await Promise.all(plans))
      .flat()
      .flatMap(({ detail }) => String(detail).match(/^S\w+ (?:r|rollouts)\b.*/) ?? []);
  };

  it('Q2: a claim by id reads no other rollouts of the queue, with and without statistics', async () => {
    const here = new RolloutScene(on.store);
    const { stage } = await here.place();
    const ids = await here.queue(stage, 1000);
    for (const [first, isAnalysed] of [
      [100, false],
      [500, true],
    ] as const) {
      if (isAnalysed) await on.sql.rows('analyze');
      const rolloutIds = [ids[first]!, ids[first + 7]!, ids[first + 90]!];
      const steps = new Set(await stepsOf(() => here.claims({ rolloutIds, count: 3 })));
      expect([...steps].sort()).toEqual(
        on.engine === 'postgres'
          ? ['Index Scan rollouts_by_id of 1 rows', 'Index Scan rollouts_pkey of 3 rows']
          : [
              'SEARCH r USING INTEGER PRIMARY KEY (rowid=?)',
              'SEARCH rollouts USING COVERING INDEX rollouts_by_id (namespace=? AND id=?)',
            ],
      );
    }
  });
});
