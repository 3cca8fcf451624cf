import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { refusalOf } from './scene.ts';

describeStore('scores of steps', (on) => {
  const scored = (number: number, metrics: Record<string, number>) =>
    wordStep(BigInt(number), `${number}`, { metrics: new Map(Object.entries(metrics)) });

  const scoresOf = async ({ ref }: Trajectory) => {
    const rows = await on.sql.rows(`select step_number, metric, value from step_scores
      where tree = ${ref.tree} and trajectory = ${ref.key} order by step_number, metric`);
    return rows.map((row) => [Number(row.step_number), row.metric, Number(row.value)]);
  };

  it('RD4: values of declared metrics are stored once, by single appends and batches, without NaN, and are removed with their steps', async () => {
    const scene = on.scene();
    const root = scored(0, { a: 1, c: 9 });
    const made = await scene.create({ root, scoredMetrics: ['a', 'b'] });
    expect(made.scoredMetrics).toEqual(['a', 'b']);
    const steps = [
      scored(1, { a: 2, b: Number.NaN }),
      scored(2, { b: -Infinity }),
      scored(3, { c: 4 }),
      scored(4, { a: -0.5, b: 7 }),
    ];
    await scene.append(made, steps.slice(0, 1));
    await scene.append(made, steps.slice(1, 2));
    await scene.append(made, steps.slice(2));
    await scene.append(made, steps);
    const all = [
      [0, 'a', 1],
      [1, 'a', 2],
      [2, 'b', -Infinity],
      [4, 'a', -0.5],
      [4, 'b', 7],
    ];
    expect(await scoresOf(made)).toEqual(all);
    const branch = await scene.branch(made, 2n);
    await scene.append(branch, [scored(3, { a: 3 })]);
    await scene.delete(made, 'KEEP_SHARED');
    expect(await scoresOf(made)).toEqual(all.slice(0, 3));
    expect(await scoresOf(branch)).toEqual([[3, 'a', 3]]);
    await scene.delete(branch);
    expect([await scoresOf(made), await scoresOf(branch)]).toEqual([[], []]);
  });

  it('RD4, B1: a branch has the scored metrics of its source and its own, at most 16 in all', async () => {
    const scene = on.scene();
    const keys = Array.from({ length: 15 }, (_, i) => `m${i}`);
    const made = await scene.create({ root: scored(0, {}), scoredMetrics: keys });
    const branch = await scene.branch(made, 0n, { scoredMetrics: ['m3', 'own'] });
    expect(branch.scoredMetrics).toEqual([...keys, 'own']);
    expect((await scene.branch(branch, 0n)).scoredMetrics).toEqual([...keys, 'own']);
    expect(await refusalOf(scene.branch(branch, 0n, { scoredMetrics: ['more'] }))).toMatchObject({
      reason: 'INVALID_REQUEST',
      violations: [{ field: 'scored_metrics' }],
    });
  });

  it('RD4: a list by a metric that no trajectory declares is empty', async () => {
    const scene = new RunScene(on.store);
    const { id: experimentId } = await scene.experiment();
    const made = await scene.create({ experimentId, root: scored(0, { a: 1, b: 2 }), scoredMetrics: ['b'] });
    const tree = { tree: made.ref.tree, lineage: await scene.lineage(made) };
    const list = async (metric: string, of: { experimentId: string } | typeof tree) => {
      const page = { limit: 5, after: undefined, maxBytes: 1e6 };
      const sort = { by: 'METRIC', metric, descending: true } as const;
      return (await scene.store.listSteps(scene.namespace, { of }, sort, page, 'BASIC')).steps.length;
    };
    for (const of of [{ experimentId }, tree]) {
      expect(await list('a', of)).toBe(0);
      expect(await list('b', of)).toBe(1);
    }
  });
});
