import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { addAggregates } from '../../src/store/sqlite/connection.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { wordStep } from '../support/steps.ts';
import { openOn } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { RunScene } from './run_scene.ts';
import { sqlitePath } from './sql.ts';
import { sqliteTextsOf } from './statement_count.ts';

const NO_FILTER = { experimentId: undefined, stageKinds: [], taskIds: [], runLabels: new Map(), labels: new Map() };

/** SQLite plans without statistics; Postgres gathers statistics by itself. */
describe('rows that SQLite reads', () => {
  let database: TestDatabase;
  let store: Store;
  let planner: DatabaseSync;
  beforeAll(async () => {
    database = await createMigratedDatabase('sqlite');
    store = await openOn(database);
    planner = new DatabaseSync(sqlitePath(database));
    planner.function('anabranch_now', () => '');
    addAggregates(planner);
  });
  afterAll(async () => {
    planner?.close();
    await store?.close();
    await database?.drop();
  });

  /**
   * Returns, for every statement that runs meanwhile, the steps of its plan that scan a whole table, a whole namespace
   * or a whole tree.
   */
  const wide = async (work: () => Promise<unknown>): Promise<{ statements: number; steps: string[] }> => {
    const texts = new Set((await sqliteTextsOf(work)).map((text) => text.trim()));
    const statements = [...texts].filter((text) => /^(?:select|update|delete|with)\b/iu.test(text));
    const plans = statements.map((text) => planner.prepare(`explain query plan ${text}`).all());
    const steps = plans.flatMap((plan) => {
      const details = plan.map(({ detail }) => String(detail));
      const made = new Set(details.flatMap((detail) => /^(?:CO-ROUTINE|MATERIALIZE) (\w+)/.exec(detail)?.[1] ?? []));
      return details.filter(
        (detail) =>
          /\(namespace=\?\)|trajectories_by_tree \(tree=\?\)/.test(detail) ||
          (/^SCAN (?!CONSTANT|change_marks|trajectory_imports|\(subquery)/.test(detail) &&
            !/VIRTUAL TABLE|_(?:hidden|purging|trimming)$/.test(detail) &&
            !made.has(/^SCAN (\w+)/.exec(detail)?.[1] ?? '')),
      );
    });
    return { statements: statements.length, steps };
  };

  it('for trajectories without a run come from an index that contains only these', async () => {
    const list = () => store.listTrajectories('n', { withoutRun: true, rootsOnly: true }, { limit: 50, after: 9n });
    const [text = ''] = await sqliteTextsOf(list);
    const plan = planner.prepare(`explain query plan ${text}`).all();
    expect(String(plan[0]?.detail)).toMatch(
      /^SEARCH t USING INDEX trajectories_without_run \(namespace=\? AND key<\?\)/,
    );
  });

  it('S-10, F-13: for a list by experiment, parent run, run or task come from an index on these; for branches, from the index of the tree', async () => {
    const here = new RunScene(store);
    const { id } = await here.experiment();
    const run = await here.makeRunWith(['a'], { experiment: { id } });
    const { namespace } = here;
    const page = { limit: 50, after: undefined };
    const parentId = run.mainTrajectory!.id;
    const lists: Record<string, () => Promise<unknown>> = {
      runs_by_experiment: () => store.listRuns(namespace, { experiment: { id } }, page, 'BASIC'),
      runs_by_parent: () => store.listRuns(namespace, { parentId: run.id }, page, 'BASIC'),
      trajectories_by_run: () => store.listTrajectories(namespace, { runId: run.id }, page),
      trajectories_by_experiment: () => store.listTrajectories(namespace, { experimentId: id }, page),
      trajectories_by_task: () => store.listTrajectories(namespace, { taskId: 't' }, page),
      trajectories_by_tree: () => store.listTrajectories(namespace, { parentId }, page),
    };
    for (const [index, list] of Object.entries(lists)) {
      const texts = await sqliteTextsOf(list);
      const plans = texts.flatMap((text) => planner.prepare(`explain query plan ${text}`).all());
      const details = plans.map(({ detail }) => String(detail));
      expect(details.join('\n')).toMatch(new RegExp(`^SEARCH \\w+ USING (?:COVERING )?INDEX ${index} `, 'mu'));
    }
  });

  it('RD4: for a list by reward or metric come from the indexes on rewards and scores, those of one trajectory in order', async () => {
    const here = new RunScene(store);
    const { id: experimentId } = await here.experiment();
    const make = () => here.create({ experimentId, root: wordStep(0n, 'a', { reward: 1 }), scoredMetrics: ['m'] });
    const one = await make();
    await make();
    const tree = { tree: one.ref.tree, lineage: await here.lineage(one) };
    const page = { limit: 5, after: undefined, maxBytes: 1e6 };
    for (const by of ['REWARD', 'METRIC'] as const) {
      const index = by === 'REWARD' ? 'segments_by_reward' : 'step_scores_by_value';
      for (const of of [{ experimentId }, tree]) {
        const list = () => store.listSteps(here.namespace, { of }, { by, metric: 'm', descending: true }, page, 'FULL');
        const plans = (await sqliteTextsOf(list)).map((text) =>
          planner
            .prepare(`explain query plan ${text}`)
            .all()
            .map(({ detail }) => String(detail)),
        );
        expect(plans.flat().join('\n')).toMatch(new RegExp(`^SEARCH [bv] USING COVERING INDEX ${index} `, 'mu'));
        const search = plans.find((plan) => plan.includes('MATERIALIZE c')) ?? [];
        const candidates = search.slice(search.indexOf('MATERIALIZE c'), search.indexOf('SCAN c'));
        // What the index has is read in order. The candidates of both parts are sorted then.
        const [indexed = ''] = candidates.join().split('SCAN i');
        if (of === tree) expect(indexed).not.toContain('TEMP B-TREE');
      }
    }
  });

  it('for a few runs are those of these runs, not of the whole namespace', async () => {
    const here = new RolloutScene(store);
    const runs = [];
    for (let i = 0; i < 5; i += 1) {
      const run = await here.makeRun({ status: 'RUNNING' });
      await here.queue(await here.stage(run, { status: 'RUNNING' }), 8);
      runs.push(run);
    }
    const keys = runs.map(({ key }) => key);
    const ids = runs.map(({ id }) => id);
    const { namespace } = here;
    const seen = await store.readRunChanges(namespace, ids[0]!, undefined, true);
    const page = { limit: 256, after: undefined };
    const looks = [{ since: undefined }, { since: seen?.horizon }].flatMap(({ since }) =>
      [true, false].map((allStages) => ({ since, allStages })),
    );
    const works: Record<string, () => Promise<unknown>> = {
      'looks at a run': async () => {
        for (const where of looks) {
          await store.readRunChanges(namespace, ids[0]!, where.since, where.allStages);
          await store.readChangedGroups(namespace, keys[0]!, where, page);
          await store.readChangedRollouts(namespace, keys[0]!, where, page);
        }
      },
      'progress of one run': () => store.tallyRuns(namespace, keys.slice(0, 1)),
      'progress of a page of runs': () => store.tallyRuns(namespace, keys),
      'a summary of some runs': () => store.summarize(namespace, { ...NO_FILTER, runs: ids }, ['TASK']),
      'a deletion': () => store.deleteRun(namespace, ids[0]!, 'REFUSE', true),
      'what it leaves': () => store.purgeDeleted(1000),
    };
    for (const [name, work] of Object.entries(works)) {
      const { statements, steps } = await wide(work);
      expect(statements, name).toBeGreaterThan(0);
      expect({ name, steps }).toEqual({ name, steps: [] });
    }
  });

  it('for a deletion are the deleted ones, not the whole tree', async () => {
    const here = new RolloutScene(store);
    const root = await here.createWith(['a', 'b']);
    const kept = await here.branch(root, 1n);
    await here.branch(kept, 0n);
    const last = await here.branch(root, 0n);
    for (const [trajectory, onBranches] of [
      [root, 'KEEP_SHARED'],
      [kept, 'CASCADE'],
      [last, 'REFUSE'],
    ] as const) {
      const { statements, steps } = await wide(() => here.delete(trajectory, onBranches));
      expect(statements).toBeGreaterThan(0);
      expect(steps).toEqual([]);
    }
    expect(await here.isThere(last.id)).toBe(false);
  });
});
