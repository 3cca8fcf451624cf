import { expect, it } from 'vitest';
import type { RolloutCursor, RolloutFilter } from '../../src/store/contract/rollout.ts';
import { describeStoreOn } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { sqliteTextsOf } from './statement_count.ts';

/** Statistics that an operator made (`sqlite3 data.db ANALYZE`) may be of another day, when there was little else than one large run. */
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

  /** How SQLite comes to a page: what it does with each of the tables in turn. */
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
          // In the order of the index, so that it ends with the page; a group is sorted.
          const inner = plan.slice(0, plan.indexOf('SCAN r'));
          if (!('groupId' in of)) expect(inner, told).not.toContain('USE TEMP B-TREE FOR ORDER BY');
          // The page itself is gone through, and what is of one row.
          expect(
            plan.filter((step) => /^SCAN (?!r$|x$|CONSTANT ROW$)|AUTOMATIC/.test(step)),
            told,
          ).toEqual([]);
        }
      }
    }
  };

  it('no more than a page is read for a page, without statistics and with those of any day', async () => {
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
