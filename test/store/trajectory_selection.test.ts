import { DatabaseSync } from 'node:sqlite';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { isInShard } from '../../src/domain/shard.ts';
import type { Step } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { TrajectoryFilter, TrajectoryPlace, TrajectorySort } from '../../src/store/contract/trajectory.ts';
import { addAggregates } from '../../src/store/sqlite/connection.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { plansOf } from './postgres_plans.ts';
import type { Scene } from './scene.ts';
import { sqlitePath } from './sql.ts';
import { sqliteTextsOf } from './statement_count.ts';

const CREATION: TrajectorySort = { by: 'CREATION', descending: false };

describeStore('trajectories selected by labels of steps, part and list of ids', (on) => {
  /** Returns the names of the trajectories, read in pages. */
  async function select(scene: Scene, filter: TrajectoryFilter, sort = CREATION, limit = 4096): Promise<string[]> {
    const names: string[] = [];
    for (let after: TrajectoryPlace | undefined; ; ) {
      const page = await scene.store.orderTrajectories(scene.namespace, filter, sort, { limit, after });
      const found = await scene.store.findTrajectories(scene.namespace, { keys: page.map(({ key }) => key) });
      const nameOf = new Map(found.map(({ trajectory }) => [trajectory.ref.key, trajectory.name]));
      names.push(...page.map(({ key }) => nameOf.get(key)!));
      after = page.at(-1);
      if (page.length < limit) return names;
    }
  }

  const labelled = (number: number, labels: Record<string, string> = {}): Step =>
    wordStep(BigInt(number), `${number}`, { labels: new Map(Object.entries(labels)) });

  async function make(scene: Scene, name: string, labels: readonly Record<string, string>[]): Promise<Trajectory> {
    const made = await scene.create({ name });
    if (labels.length > 0)
      await scene.append(
        made,
        labels.map((each, i) => labelled(i, each)),
      );
    return made;
  }

  async function merge(made: readonly Trajectory[]): Promise<void> {
    const all = made.map(({ ref }) => ({ ref, rest: true }));
    for (let left = all; left.length > 0; ) left = await on.store.mergeSteps(left);
  }

  it('RD6: a filter by labels of steps matches trajectories that own a step with all of them', async () => {
    const scene = on.scene();
    const both = await make(scene, 'both', [{}, { phase: 'reach', hand: 'left' }, {}]);
    const apart = await make(scene, 'apart', [{ phase: 'reach' }, { hand: 'left' }]);
    await make(scene, 'none', []);
    await make(scene, 'swapped', [{ reach: 'phase', 'phase"': 'reach' }]);
    const branch = await scene.branch(both, 2n, { name: 'branch' });
    await scene.append(branch, [labelled(3, { hand: 'left' })]);
    const gone = await make(scene, 'gone', [{ phase: 'reach', hand: 'left' }]);
    await scene.delete(gone);
    const read = (labels: Record<string, string>, rest: TrajectoryFilter = {}) =>
      select(scene, { ...rest, stepLabels: new Map(Object.entries(labels)) });
    for (const prepare of [() => undefined, () => merge([both, apart, branch])]) {
      await prepare();
      expect(await read({ phase: 'reach' })).toEqual(['both', 'apart']);
      expect(await read({ hand: 'left' })).toEqual(['both', 'apart', 'branch']);
      expect(await read({ hand: 'left', phase: 'reach' })).toEqual(['both']);
      expect(await read({ phase: 'reach', hand: 'right' })).toEqual([]);
      expect(await read({ hand: 'left' }, { name: 'branch' })).toEqual(['branch']);
      expect(await read({ hand: 'left' }, { minLength: 3n, rootsOnly: true })).toEqual(['both']);
    }
    const elsewhere = on.scene();
    expect(await select(elsewhere, { stepLabels: new Map([['hand', 'left']]) })).toEqual([]);
  });

  it('RD6: the same trajectories match as in a naive search, of any labels, merged or not, in pages of any size', async () => {
    const scene = on.scene();
    const label = fc.dictionary(fc.constantFrom('a', 'b', 'c'), fc.constantFrom('1', '2'), { maxKeys: 3 });
    const drawn = fc.sample(fc.array(label, { maxLength: 12 }), { seed: 7, numRuns: 40 });
    const made: Trajectory[] = [];
    for (const [i, labels] of drawn.entries()) made.push(await make(scene, `${i}`, labels));
    await merge(made.filter((_, i) => i % 2 === 0));
    const wanted = fc.dictionary(fc.constantFrom('a', 'b', 'c'), fc.constantFrom('1', '2'), { minKeys: 1 });
    await fc.assert(
      fc.asyncProperty(wanted, fc.integer({ min: 1, max: 50 }), fc.boolean(), async (labels, limit, descending) => {
        const matches = (step: Record<string, string>) => Object.entries(labels).every(([k, v]) => step[k] === v);
        const naive = drawn.flatMap((steps, i) => (steps.some(matches) ? [`${i}`] : []));
        const stepLabels = new Map(Object.entries(labels));
        const found = await select(scene, { stepLabels }, { by: 'CREATION', descending }, limit);
        expect(found).toEqual(descending ? naive.toReversed() : naive);
      }),
      { numRuns: 15 },
    );
  });

  it('RD6: trajectories without labelled steps are passed over by keys, 256 at a time', async () => {
    const scene = on.scene();
    const made = await Promise.all(Array.from({ length: 300 }, () => scene.create()));
    await scene.store.append(
      made.map((each) => scene.batch(each, [labelled(0)])),
      'bounded',
    );
    await make(scene, 'labelled', [{ a: '1' }, { a: '2' }]);
    await on.sql.rows('analyze');
    const work = () => select(scene, { stepLabels: new Map([['a', '2']]) });
    expect(await work()).toEqual(['labelled']);
    if (on.engine === 'postgres') {
      const reads = (await plansOf(on.database, work)).filter((plan) =>
        plan.some(({ table }) => table === 'segment_names'),
      );
      expect(reads).toHaveLength(2);
      for (const plan of reads) {
        const segments = plan.filter(({ table }) => table === 'segments');
        expect(segments.map(({ index }) => index)).toEqual(['segments_pkey', 'segments_pkey']);
        const [inIndex, unmerged] = segments;
        expect(inIndex!.rows).toBeLessThan(3);
        expect(unmerged!.rows, 'the last segment of each trajectory').toBeLessThanOrEqual(256);
      }
      return;
    }
    const texts = (await sqliteTextsOf(work)).filter((text) => text.includes('b.labels'));
    expect(texts).toHaveLength(2);
    const planner = new DatabaseSync(sqlitePath(on.database));
    addAggregates(planner);
    const details = planner
      .prepare(`explain query plan ${texts[0]}`)
      .all()
      .map(({ detail }) => String(detail));
    planner.close();
    expect(details.filter((detail) => /SEARCH [bn]/.test(detail))).toEqual([
      'SEARCH n USING PRIMARY KEY (tree=? AND trajectory=? AND name=?)',
      'SEARCH b USING INDEX segments_by_trajectory (tree=? AND trajectory=? AND first_step_number=?)',
      'SEARCH b USING INDEX segments_by_trajectory (tree=? AND trajectory=? AND first_step_number>?)',
    ]);
  });

  it('RD6: each trajectory is in exactly one of the parts, in every order', async () => {
    const scene = on.scene();
    const names = Array.from({ length: 40 }, (_, i) => `${i}`);
    const ids = new Map<string, string>();
    for (const name of names) ids.set(name, (await scene.create({ name })).id);
    for (const count of [1, 2, 3, 7]) {
      const parts: string[][] = [];
      for (let index = 0; index < count; index += 1) {
        const shard = { index, count };
        const part = await select(scene, { shard }, { by: 'REWARD_SUM', descending: true }, 3);
        expect(part.toReversed()).toEqual(names.filter((name) => isInShard(ids.get(name)!, shard)));
        parts.push(part);
      }
      expect(parts.flat().toSorted()).toEqual(names.toSorted());
    }
  });

  it('RD6: REQUESTED is the order of the ids, in both directions and in pages of any size', async () => {
    const scene = on.scene();
    const made: Trajectory[] = [];
    for (const name of ['a', 'b', 'c', 'd', 'e']) made.push(await make(scene, name, name === 'd' ? [] : [{}]));
    const [a, b, c, d, e] = made.map(({ id }) => id) as [string, string, string, string, string];
    const ids = [d, a, crypto.randomUUID(), e, a, b, c];
    await scene.delete(made[4]!);
    for (const limit of [1, 2, 100]) {
      const read = (filter: TrajectoryFilter, descending = false) =>
        select(scene, filter, { by: 'REQUESTED', descending }, limit);
      expect(await read({ ids })).toEqual(['d', 'a', 'b', 'c']);
      expect(await read({ ids }, true)).toEqual(['c', 'b', 'a', 'd']);
      expect(await read({ ids, minLength: 1n })).toEqual(['a', 'b', 'c']);
    }
  });
});
