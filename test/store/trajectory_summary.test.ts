import fc from 'fast-check';
import { expect, it } from 'vitest';
import { rewardStatistics } from '../../src/domain/rollout.ts';
import type { Run } from '../../src/domain/run.ts';
import type { SummaryKey, TrajectorySummaryRow } from '../../src/domain/summary.ts';
import type { SummaryFilter } from '../../src/store/contract/summary.ts';
import { makeStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { statementsOfWarm } from './statement_count.ts';

const NO_FILTER: SummaryFilter = {
  runs: [],
  experimentId: undefined,
  stageKinds: [],
  taskIds: [],
  runLabels: new Map(),
  labels: new Map(),
};

interface Planned {
  readonly taskId: string;
  readonly labels: ReadonlyMap<string, string>;
  readonly steps: readonly { readonly reward: number | undefined; readonly metrics: ReadonlyMap<string, number> }[];
}

interface Unit extends Planned {
  readonly run: Run;
}

describeStore('summaries of trajectories', (on) => {
  const scene = () => new RolloutScene(on.store);
  const summarize = (here: RolloutScene, by: readonly SummaryKey[], filter: Partial<SummaryFilter> = {}) =>
    here.store.summarizeTrajectories(here.namespace, { ...NO_FILTER, ...filter }, by);
  const byValues = (rows: readonly TrajectorySummaryRow[]) =>
    new Map(rows.map((row) => [JSON.stringify(row.values), row] as const));

  const add = async (here: RolloutScene, run: Run, { taskId, labels, steps }: Planned) => {
    const trajectory = await here.create({ runId: run.id, taskId, labels });
    const numbered = steps.map((step, i) => makeStep(BigInt(i), step));
    if (numbered.length > 0) await here.append(trajectory, numbered);
    return here.get(trajectory.id);
  };
  const plan = (steps: Planned['steps'] = [], taskId = '', labels = {}): Planned => ({
    taskId,
    labels: new Map(Object.entries(labels)),
    steps,
  });
  const step = (reward?: number, metrics: Readonly<Record<string, number>> = {}) => ({
    reward,
    metrics: new Map(Object.entries(metrics)),
  });

  it('M3: for every grouping of trajectories, the summary equals counting them one by one', async () => {
    const reward = fc.constantFrom(undefined, Number.NaN, 0, 1, -2.5, 1e9, 1e9 + 0.25);
    const metrics = fc.constantFrom(
      {},
      { tokens: 3 },
      { tokens: 0.5, 'odd "key"': -1 },
      { tokens: Number.NaN, ticks: -0 },
    );
    const trajectory = fc.record({
      run: fc.nat(2),
      taskId: fc.constantFrom('', 'open', 'close'),
      labels: fc.constantFrom({}, { model: 'big' }, { model: 'big', 'odd "key"': 'x' }),
      steps: fc.array(fc.record({ reward, metrics }), { maxLength: 4 }),
    });
    const dimension = fc.constantFrom<SummaryKey>(
      ...(['TASK', 'RUN', 'EXPERIMENT', 'STAGE_KIND', 'MODEL_URI', 'NUMBER'] as const),
      { label: 'model' },
      { label: 'odd "key"' },
    );
    const by = fc.uniqueArray(dimension, { maxLength: 4 });
    const cases = fc.tuple(
      fc.array(trajectory, { minLength: 1, maxLength: 12 }),
      fc.array(by, { minLength: 3, maxLength: 3 }),
    );
    await fc.assert(
      fc.asyncProperty(cases, async ([drawn, dimensions]) => {
        const here = scene();
        const other = await here.experiment();
        const runs = [
          await here.makeRun({ labels: new Map([['model', 'small']]) }),
          await here.makeRun(),
          await here.makeRun({ experiment: { id: other.id } }),
        ];
        const units: Unit[] = [];
        for (const { run, taskId, labels, steps } of drawn) {
          const planned = plan(
            steps.map((each) => step(each.reward, each.metrics)),
            taskId,
            labels,
          );
          await add(here, runs[run]!, planned);
          units.push({ ...planned, run: runs[run]! });
        }
        for (const keys of [[], ...dimensions]) {
          const found = byValues(await summarize(here, keys));
          const naive = Map.groupBy(units, (unit) => JSON.stringify(keys.map((key) => valueIn(unit, key))));
          expect([...found.keys()].sort()).toEqual([...naive.keys()].sort());
          for (const [values, counted] of naive) expectCounted(found.get(values), counted);
        }
      }),
      { numRuns: 8 },
    );
  });

  const valueIn = ({ run, taskId, labels }: Unit, key: SummaryKey): string => {
    if (key === 'TASK') return taskId;
    if (key === 'RUN') return run.id;
    if (key === 'EXPERIMENT') return run.experiment.id;
    if (typeof key === 'string') return '';
    return labels.get(key.label) ?? run.labels.get(key.label) ?? '';
  };

  const expectCounted = (row: TrajectorySummaryRow | undefined, units: readonly Unit[]) => {
    const sum = (all: readonly number[]) => all.reduce((total, each) => total + each, 0);
    const counted = (value: number | undefined): value is number => value !== undefined && !Number.isNaN(value);
    const steps = units.flatMap((unit) => unit.steps);
    const finals = units.map((unit) => sum(unit.steps.map(({ reward }) => reward).filter(counted)));
    const sorted = finals.toSorted((a, b) => a - b);
    const { std } = rewardStatistics(finals);
    const sums = new Map<string, number>();
    for (const [name, value] of steps.flatMap(({ metrics }) => [...metrics]))
      if (counted(value)) sums.set(name, (sums.get(name) ?? 0) + value);
    expect(row).toMatchObject({
      trajectories: BigInt(units.length),
      steps: BigInt(steps.length),
      rewards: {
        count: BigInt(units.length),
        sum: closeTo(sum(finals)),
        min: sorted[0],
        max: sorted.at(-1),
        squares: closeTo((std ?? 0) ** 2 * (finals.length - 1)),
        median: closeTo((sorted[(finals.length - 1) >> 1]! + sorted[finals.length >> 1]!) / 2),
      },
    });
    expect(new Map([...row!.metricSums].map(([name, value]) => [name, value + 0]))).toEqual(
      new Map([...sums].map(([name, value]) => [name, closeTo(value)])),
    );
  };

  /** Equal to nine digits, or very close to 0. */
  const closeTo = (value: number) => ({
    asymmetricMatch: (other: unknown) => Math.abs(Number(other) - value) <= Math.max(1e-9, Math.abs(value) * 1e-9),
  });

  it('M3: counts roots of runs without rollouts, and nothing else', async () => {
    const here = scene();
    const run = await here.makeRun();
    const root = await add(here, run, plan([step(1, { tokens: 10 }), step(2, { tokens: 1 })]));
    const branch = await here.branch(root, 0n);
    await here.append(branch, [makeStep(1n, { reward: 100, metrics: new Map([['tokens', 100]]) })]);
    await here.create(); // of no run
    await here.delete(await add(here, run, plan([step(7)])));
    const { run: trained, stage } = await here.place();
    await add(here, trained, plan([step(9)]));
    await here.queue(stage, 1);
    expect(await summarize(here, [])).toEqual([
      {
        values: [],
        trajectories: 1n,
        steps: 2n,
        rewards: { count: 1n, sum: 3, min: 3, max: 3, squares: 0, median: 3 },
        metricSums: new Map([['tokens', 11]]),
      },
    ]);
  });

  it('M3: filters by run, experiment, task, labels and creation time; a stage kind excludes all', async () => {
    const here = scene();
    const experiment = await here.experiment();
    const one = await here.makeRun({ labels: new Map([['sweep', 'a']]) });
    const other = await here.makeRun({ experiment: { id: experiment.id } });
    const first = await add(here, one, plan([], 'open', { model: 'x' }));
    const second = await add(here, other, plan([], 'close', { model: 'y' }));
    const count = async (filter: Partial<SummaryFilter>) => (await summarize(here, [], filter))[0]?.trajectories ?? 0n;
    expect(await count({})).toBe(2n);
    expect(await count({ runs: [one.id] })).toBe(1n);
    expect(await count({ experimentId: experiment.id })).toBe(1n);
    expect(await count({ taskIds: ['open', 'none'] })).toBe(1n);
    expect(await count({ runLabels: new Map([['sweep', 'a']]) })).toBe(1n);
    expect(await count({ labels: new Map([['model', 'y']]) })).toBe(1n);
    expect(await count({ createTimeFrom: second.createTime })).toBe(first.createTime === second.createTime ? 2n : 1n);
    expect(await count({ createTimeTo: first.createTime })).toBe(0n);
    expect(await count({ createTimeFrom: first.createTime })).toBe(2n);
    expect(await count({ stageKinds: ['EVAL'] })).toBe(0n);
    const unknown = '00000000-0000-4000-8000-000000000404';
    expect((await refusalOf(summarize(here, [], { runs: [unknown] }))).reason).toBe('RUN_NOT_FOUND');
    expect((await refusalOf(summarize(here, [], { experimentId: unknown }))).reason).toBe('EXPERIMENT_NOT_FOUND');
  });

  it('W11: very large, infinite and NaN rewards and metrics cause no error on either engine', async () => {
    const here = scene();
    const run = await here.makeRun();
    for (const reward of [1e308, 1e308, -1e308, 5]) await add(here, run, plan([step(reward, { n: reward })], 'a'));
    await add(here, run, plan([step(Infinity, { n: Infinity, m: Number.NaN })], 'b'));
    await add(here, run, plan([step(2, { n: -Infinity })], 'c'));
    await add(here, run, plan([step(Infinity), step(-Infinity)], 'd'));
    const rows = byValues(await summarize(here, ['TASK']));
    const [a, b, c, d] = ['a', 'b', 'c', 'd'].map((task) => rows.get(JSON.stringify([task]))!);
    expect(a?.rewards).toMatchObject({ count: 4n, min: -1e308, max: 1e308, median: 5e307 });
    expect(b).toMatchObject({ rewards: { count: 1n, max: Infinity }, metricSums: new Map([['n', Infinity]]) });
    expect(c).toMatchObject({ rewards: { count: 1n, max: 2 }, metricSums: new Map([['n', -Infinity]]) });
    expect(d).toMatchObject({ trajectories: 1n, rewards: { count: 0n } });
  });

  it('M3: takes the same statements, however many trajectories there are', async () => {
    const here = scene();
    const run = await here.makeRun();
    await add(here, run, plan([step(1)]));
    const cost = () => statementsOfWarm(on.engine, () => summarize(here, ['TASK', { label: 'model' }]));
    expect(await cost()).toBe(2);
    for (let i = 0; i < 20; i += 1) await add(here, run, plan([step(i)], `task ${i}`));
    expect(await cost()).toBe(2);
  });
});
