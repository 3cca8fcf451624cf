import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { MetricRange, NewMetricPoint, Series } from '../../src/domain/metric.ts';
import type { Run } from '../../src/domain/run.ts';
import { dose } from '../support/dose.ts';
import { describeStore, openOn } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows, dumpNamespace } from './sql.ts';
import { statementsOf } from './statement_count.ts';

const ALL: MetricRange = { from: undefined, to: undefined };
const ODD = [
  Number.NaN,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
  0,
  -0,
  5e-324,
  -Number.MAX_VALUE,
  0.1 + 0.2,
  2 ** 53 + 2,
];

function point(name: string, metricStep: number | bigint, value: number, stageId?: string): NewMetricPoint {
  return { name, metricStep: BigInt(metricStep), value, stageId };
}

describeStore('metrics', (on) => {
  const scene = () => new RunScene(on.store);
  const log = (here: RunScene, run: Pick<Run, 'id'>, points: readonly NewMetricPoint[]) =>
    here.store.logMetrics(here.namespace, run.id, points);
  const list = (here: RunScene, runs: readonly Pick<Run, 'id'>[], filter = {}, limit = 1000, after?: Series) =>
    here.store.listSeries(
      here.namespace,
      { runs: runs.map(({ id }) => id), names: undefined, stage: undefined, ...filter },
      limit,
      after,
    );
  const onlySeries = async (here: RunScene, run: Pick<Run, 'id'>, name = 'm') => {
    const [series] = await list(here, [run], { names: [name], stage: 'none' });
    if (series === undefined) throw new Error(`no series ${name}`);
    return series.key;
  };
  const read = async (here: RunScene, run: Pick<Run, 'id'>, name = 'm', range = ALL, limit = 10_000) =>
    here.store.readPoints(here.namespace, await onlySeries(here, run, name), range, limit);
  const pairs = async (here: RunScene, run: Pick<Run, 'id'>, name = 'm') => {
    const { metricSteps, values } = await read(here, run, name);
    return metricSteps.map((step, i) => [Number(step), values[i]]);
  };
  const measure = async (here: RunScene, key: bigint, range = ALL) =>
    (await here.store.measureSeries(here.namespace, [key], range)).get(key);
  const downsample = async (here: RunScene, key: bigint, maxPoints: number, range = ALL) => {
    const extent = await measure(here, key, range);
    if (extent === undefined) throw new Error('nothing to read');
    return (await here.store.downsample(here.namespace, [{ key, extent }], maxPoints)).get(key)!;
  };

  it('M1: points are returned by step, whatever order they were logged in, with every value: NaN, infinities, -0', async () => {
    const here = scene();
    const run = await here.makeRun();
    const steps = [2n ** 63n - 1n, -(2n ** 63n), 0n, 7n, -1n, 2n ** 53n + 1n, 5n, 6n, 8n];
    const points = steps.map((step, i) => point('m', step, ODD[i]!));
    await log(here, run, points);
    const sorted = points.toSorted((a, b) => (a.metricStep < b.metricStep ? -1 : 1));
    const found = await read(here, run);
    expect(found.metricSteps).toEqual(sorted.map(({ metricStep }) => metricStep));
    expect(found.values.map((value) => [value, Object.is(value, -0)])).toEqual(
      sorted.map(({ value }) => [value, Object.is(value, -0)]),
    );
  });

  it('M1: of two points with one identity the last to arrive wins, also within a call', async () => {
    const here = scene();
    const run = await here.makeRun();
    await log(here, run, [point('m', 1, 1), point('m', 2, 2), point('m', 1, 3), point('m', 0, 9), point('m', 1, 4)]);
    expect(await pairs(here, run)).toEqual([
      [0, 9],
      [1, 4],
      [2, 2],
    ]);
    await log(here, run, [point('m', 2, 5), point('m', 1, Number.NaN), point('m', 3, -0)]);
    await log(here, run, [point('m', 1, 6)]);
    expect(await pairs(here, run)).toEqual([
      [0, 9],
      [1, 6],
      [2, 5],
      [3, -0],
    ]);
    expect((await countRows(on.sql, here.namespace)).metric_points).toBe(4);
  });

  it('M1: a series belongs to a run or to a stage; names are compared byte by byte', async () => {
    const here = scene();
    const run = await here.makeRun();
    const stage = await here.stage(run);
    const names = [
      'a',
      'A',
      'a ',
      '\u00e9',
      'e\u0301',
      "'; drop table runs; --",
      '\u{1f30a}',
      '__proto__',
      'x'.repeat(256),
      '%',
      'NULL',
    ];
    await log(here, run, [
      ...names.map((name, i) => point(name, 1, i)),
      ...names.map((name, i) => point(name, 1, 100 + i, stage.id)),
    ]);
    const series = await list(here, [run]);
    const inBytes = names.toSorted((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    expect(series.map(({ name, stageId, runId }) => [runId, stageId, name])).toEqual([
      ...inBytes.map((name) => [run.id, '', name]),
      ...inBytes.map((name) => [run.id, stage.id, name]),
    ]);
    for (const { key, name, stageId } of series) {
      const { values } = await here.store.readPoints(here.namespace, key, ALL, 9);
      expect(values).toEqual([names.indexOf(name) + (stageId === '' ? 0 : 100)]);
    }
  });

  it('M1: all points are stored or none: unknown runs and stages are refused by name', async () => {
    const here = scene();
    const [run, other] = [await here.makeRun(), await here.makeRun()];
    const foreign = await here.stage(other);
    await log(here, run, [point('here', 1, 1)]);
    const before = await dumpNamespace(on.sql, here.namespace);
    for (const stageId of [randomUUID(), foreign.id])
      expect(
        await refusalOf(log(here, run, [point('here', 2, 2), point('new', 1, 1), point('m', 1, 1, stageId)])),
      ).toMatchObject({ reason: 'STAGE_NOT_FOUND', metadata: { stage: stageId } });
    const missing = randomUUID();
    expect(await refusalOf(log(here, { id: missing }, [point('m', 1, 1)]))).toMatchObject({
      reason: 'RUN_NOT_FOUND',
      metadata: { run: missing },
    });
    expect((await refusalOf(here.store.logMetrics('other', run.id, [point('here', 2, 2)]))).reason).toBe(
      'RUN_NOT_FOUND',
    );
    expect(await dumpNamespace(on.sql, here.namespace)).toBe(before);
  });

  it('N1: series of another namespace are not found', async () => {
    const here = scene();
    const run = await here.makeRun();
    await log(here, run, [point('m', 1, 1), point('m', 2, 2)]);
    const key = await onlySeries(here, run);
    const extent = (await measure(here, key))!;
    const store = here.store;
    expect((await store.measureSeries('other', [key], ALL)).size).toBe(0);
    expect((await store.readPoints('other', key, ALL, 9)).values).toEqual([]);
    expect((await store.downsample('other', [{ key, extent }], 4)).size).toBe(0);
    const filter = { runs: [run.id], names: undefined, stage: undefined };
    expect((await refusalOf(store.listSeries('other', filter, 9, undefined))).reason).toBe('RUN_NOT_FOUND');
  });

  it('lists series by run in request order, then by stage in creation order, then by name; filtered, and in pages', async () => {
    const here = scene();
    const runs = [await here.makeRun(), await here.makeRun(), await here.makeRun()] as [Run, Run, Run];
    const [first, second] = [await here.stage(runs[0], { number: 9n }), await here.stage(runs[0], { number: 1n })];
    await log(here, runs[0], [
      point('b', 1, 1, second.id),
      point('b', 1, 1, first.id),
      point('a', 1, 1, second.id),
      point('z', 1, 1),
      point('b', 1, 1),
    ]);
    await log(here, runs[2], [point('b', 1, 1), point('a', 1, 1)]);
    const asked = [runs[2], runs[0], runs[1]];
    const text = (series: readonly Series[]) =>
      series.map(({ runId, stageId, name }) => {
        const stage = stageId === '' ? '' : stageId === first.id ? '/1' : '/2';
        return `${runs.findIndex(({ id }) => id === runId)}${stage} ${name}`;
      });
    const whole = ['2 a', '2 b', '0 b', '0 z', '0/1 b', '0/2 a', '0/2 b'];
    const all = await list(here, asked);
    expect(text(all)).toEqual(whole);
    for (let at = 0; at <= all.length; at += 1)
      expect(text(await list(here, asked, {}, 3, all[at - 1]))).toEqual(whole.slice(at, at + 3));
    expect(text(await list(here, asked, { names: ['b'] }))).toEqual(['2 b', '0 b', '0/1 b', '0/2 b']);
    expect(text(await list(here, asked, { names: [] }))).toEqual([]);
    expect(text(await list(here, asked, { stage: 'none' }))).toEqual(['2 a', '2 b', '0 b', '0 z']);
    expect(text(await list(here, asked, { stage: second.id, names: ['a', 'b'] }))).toEqual(['0/2 a', '0/2 b']);
    expect(text(await list(here, asked, { stage: randomUUID() }))).toEqual([]);
    expect(await list(here, [])).toEqual([]);
    const lost = list(here, [runs[0], { id: randomUUID() }]);
    expect((await refusalOf(lost)).reason).toBe('RUN_NOT_FOUND');
  });

  it('summarises series: number of points, including NaN, first and last step of the range', async () => {
    const here = scene();
    const run = await here.makeRun();
    const values = [1, Number.NaN, 2, Number.NaN, 3, Number.POSITIVE_INFINITY];
    await log(
      here,
      run,
      values.map((value, i) => point('m', i * 10, value)),
    );
    await log(here, run, [point('n', -5, 1)]);
    const key = await onlySeries(here, run);
    expect(await measure(here, key)).toEqual({
      points: 6n,
      nans: 2n,
      firstStep: 0n,
      lastStep: 50n,
      lastValue: Number.POSITIVE_INFINITY,
    });
    expect(await measure(here, key, { from: 10n, to: 50n })).toEqual({
      points: 4n,
      nans: 2n,
      firstStep: 10n,
      lastStep: 40n,
      lastValue: 3,
    });
    expect(await measure(here, key, { from: undefined, to: 40n })).toMatchObject({ lastValue: Number.NaN });
    expect(await measure(here, key, { from: 1n, to: 9n })).toBeUndefined();
    expect(await measure(here, key, { from: 51n, to: undefined })).toBeUndefined();
    const both = await here.store.measureSeries(here.namespace, [await onlySeries(here, run, 'n'), key], ALL);
    expect([...both.values()].map(({ points }) => points).sort()).toEqual([1n, 6n]);
  });

  it('counts a series to its end, in as many statements as needed', async () => {
    const here = scene();
    const run = await here.makeRun();
    await log(here, run, [point('m', 0, 1)]);
    const key = await onlySeries(here, run);
    await fill(key, here.namespace, 101_001);
    expect(await measure(here, key)).toMatchObject({ points: 101_002n, nans: 0n, firstStep: 0n, lastStep: 101_001n });
    expect(await measure(here, key, { from: undefined, to: 100_500n })).toMatchObject({ points: 100_500n });
  });
  async function fill(key: bigint, namespace: string, count: number): Promise<void> {
    const rows =
      on.engine === 'postgres'
        ? `generate_series(1, ${count}) as i`
        : `(with recursive g(i) as (select 1 union all select i + 1 from g where i < ${count}) select i from g)`;
    await on.sql.rows(
      `insert into metric_points (series, metric_step, namespace, value) select ${key}, i, '${namespace}', (i * 7919 % 1000) / 10.0 from ${rows}`,
    );
  }

  it('reads points of a range, up to a limit', async () => {
    const here = scene();
    const run = await here.makeRun();
    await log(
      here,
      run,
      Array.from({ length: 100 }, (_, i) => point('m', i, i / 2)),
    );
    const steps = async (range: MetricRange, limit: number) => (await read(here, run, 'm', range, limit)).metricSteps;
    expect(await steps({ from: 10n, to: 13n }, 99)).toEqual([10n, 11n, 12n]);
    expect(await steps({ from: 98n, to: undefined }, 99)).toEqual([98n, 99n]);
    expect(await steps({ from: undefined, to: undefined }, 2)).toEqual([0n, 1n]);
    expect(await steps({ from: 100n, to: undefined }, 2)).toEqual([]);
  });

  /** Values with many ties, and some that the engines treat differently. */
  const arbitraryValue = fc.oneof(
    { weight: 8, arbitrary: fc.integer({ min: -10, max: 10 }) },
    { weight: 1, arbitrary: fc.constantFrom(...ODD) },
  );
  const arbitraryStep = fc.oneof(
    { weight: 8, arbitrary: fc.bigInt({ min: -500n, max: 500n }) },
    { weight: 1, arbitrary: fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }) },
  );

  it('M1: downsampling keeps first, last and the extrema of buckets of equal size, as computed from a full read', async () => {
    const here = scene();
    const series = fc.uniqueArray(fc.tuple(arbitraryStep, arbitraryValue), {
      minLength: 1,
      maxLength: 300,
      selector: ([step]: [bigint, number]) => step,
      size: 'max',
    });
    const limit = fc.oneof(fc.integer({ min: 4, max: 40 }), fc.constantFrom(500, 10_000));
    await fc.assert(
      fc.asyncProperty(series, limit, async (points, maxPoints) => {
        const run = await here.makeRun();
        await log(
          here,
          run,
          points.map(([step, value]) => point('m', step, value)),
        );
        const { metricSteps, values } = await downsample(here, await onlySeries(here, run), maxPoints);
        expect(metricSteps.map((step, i) => [step, values[i]])).toEqual(plainly(points, maxPoints));
        expect(values.length).toBeLessThanOrEqual(maxPoints);
      }),
      { numRuns: dose(15, 100) },
    );
  });
  /** Downsamples by reading every point. */
  function plainly(points: readonly (readonly [bigint, number])[], maxPoints: number): (readonly [bigint, number])[] {
    const numbers = points
      .filter(([, value]) => !Number.isNaN(value))
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([step, value]) => [step, value] as const);
    if (numbers.length === 0) return [];
    const buckets = Math.min(numbers.length, Math.floor((maxPoints - 2) / 2));
    const kept = new Set([numbers[0]!, numbers.at(-1)!]);
    const [size, larger] = [Math.floor(numbers.length / buckets), numbers.length % buckets];
    for (let at = 0, bucket = 0; bucket < buckets; bucket += 1) {
      const inside = numbers.slice(at, at + size + (bucket < larger ? 1 : 0));
      kept.add(inside.reduce((best, each) => (each[1] < best[1] ? each : best)));
      kept.add(inside.reduce((best, each) => (each[1] > best[1] ? each : best)));
      at += inside.length;
    }
    return [...kept].sort(([a], [b]) => (a < b ? -1 : 1));
  }

  it('M1: one point far from the others does not change their buckets', async () => {
    const here = scene();
    const run = await here.makeRun();
    const points = Array.from({ length: 9999 }, (_, i): [bigint, number] => [BigInt(i), Math.sin(i)]);
    points.push([10n ** 9n, 0]);
    await log(
      here,
      run,
      points.map(([step, value]) => point('m', step, value)),
    );
    const { metricSteps, values } = await downsample(here, await onlySeries(here, run), 500);
    expect(metricSteps).toHaveLength(500);
    expect(metricSteps.map((step, i) => [step, values[i]])).toEqual(plainly(points, 500));
  });

  it('M1: a series longer than one statement reads is divided into equal buckets', async () => {
    const here = scene();
    const run = await here.makeRun();
    await log(here, run, [point('m', 0, 1)]);
    const key = await onlySeries(here, run);
    await fill(key, here.namespace, 101_000);
    const points = Array.from({ length: 101_001 }, (_, i): [bigint, number] => [
      BigInt(i),
      i === 0 ? 1 : ((i * 7919) % 1000) / 10,
    ]);
    const expectPlainly = async () => {
      for (const maxPoints of [4, 6, 500]) {
        const { metricSteps, values } = await downsample(here, key, maxPoints);
        expect(metricSteps.map((step, i) => [step, values[i]])).toEqual(plainly(points, maxPoints));
      }
    };
    // Without a gap between its steps, then with one.
    await expectPlainly();
    await log(here, run, [point('m', 1_000_000, 3)]);
    points.push([1_000_000n, 3]);
    await expectPlainly();
  });

  it('M1: a series from the first to the last step of int64 is downsampled; a series of NaN only has no points', async () => {
    const here = scene();
    const run = await here.makeRun();
    const [low, high] = [-(2n ** 63n), 2n ** 63n - 1n];
    await log(here, run, [
      point('m', low, 1),
      point('m', 0, 2),
      point('m', 1, 9),
      point('m', 2, -9),
      point('m', high, 4),
    ]);
    const { metricSteps, values } = await downsample(here, await onlySeries(here, run), 4);
    expect(metricSteps).toEqual([low, 1n, 2n, high]);
    expect(values).toEqual([1, 9, -9, 4]);
    await log(here, run, [point('nan', 1, Number.NaN), point('nan', 2, Number.NaN)]);
    expect(await downsample(here, await onlySeries(here, run, 'nan'), 4)).toEqual({ metricSteps: [], values: [] });
  });

  it('M1: only points of the requested range are downsampled', async () => {
    const here = scene();
    const run = await here.makeRun();
    await log(
      here,
      run,
      Array.from({ length: 100 }, (_, i) => point('m', i, i === 5 ? -99 : i === 90 ? 99 : i % 7)),
    );
    const found = await downsample(here, await onlySeries(here, run), 4, { from: 10n, to: 90n });
    expect(found).toEqual({ metricSteps: [10n, 13n, 14n, 89n], values: [3, 6, 0, 5] });
  });

  it('M1: points of a range are returned without NaN on request', async () => {
    const here = scene();
    const run = await here.makeRun();
    await log(here, run, [point('m', 0, 1), point('m', 1, Number.NaN), point('m', 2, Infinity), point('m', 3, 4)]);
    const key = await onlySeries(here, run);
    const { values } = await here.store.readPoints(here.namespace, key, ALL, 2, true);
    expect(values).toEqual([1, Number.POSITIVE_INFINITY]);
  });

  it('M1: concurrent writers of the same points and series, in any order, all succeed, also over two servers', async () => {
    const here = scene();
    const run = await here.makeRun();
    const stages = await Promise.all([1n, 2n].map((number) => here.stage(run, { number })));
    const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
    try {
      const names = Array.from({ length: 10 }, (_, i) => `s${i}`);
      await Promise.all(
        Array.from({ length: 20 }, (_, writer) => {
          const points = names.flatMap((name) =>
            [undefined, ...stages.map(({ id }) => id)].flatMap((stageId) =>
              Array.from({ length: 10 }, (_x, step) => point(name, step, writer, stageId)),
            ),
          );
          const ordered = writer % 2 === 0 ? points : points.toReversed();
          return (writer % 4 < 2 ? on.store : other).logMetrics(here.namespace, run.id, ordered);
        }),
      );
      const series = await list(here, [run]);
      expect(series).toHaveLength(30);
      const seen = new Set<number>();
      for (const { key } of series) {
        const { values } = await here.store.readPoints(here.namespace, key, ALL, 99);
        expect(values).toHaveLength(10);
        for (const value of values) seen.add(value);
      }
      // Calls are stored completely, one after the other: one of them was the last.
      expect(seen.size).toBe(1);
    } finally {
      if (other !== on.store) await other.close();
    }
  });

  it('M1: of calls that are written together each is stored or refused independently', async () => {
    const here = scene();
    const run = await here.makeRun();
    await log(here, run, [point('known', 0, 0)]);
    const calls = Array.from({ length: 24 }, (_, i) => {
      if (i % 6 === 1) return log(here, { id: randomUUID() }, [point('known', i, i)]);
      if (i % 6 === 3) return log(here, run, [point('known', i, i), point('s', i, i, randomUUID())]);
      return log(here, run, [point(i % 6 === 5 ? `new ${i}` : 'known', i, i)]);
    });
    const outcomes = await Promise.all(
      calls.map((call) =>
        call.then(
          () => 'stored',
          ({ reason }) => reason,
        ),
      ),
    );
    expect(outcomes).toEqual(
      calls.map((_, i) => (i % 6 === 1 ? 'RUN_NOT_FOUND' : i % 6 === 3 ? 'STAGE_NOT_FOUND' : 'stored')),
    );
    const even = calls.flatMap((_, i) => (i % 2 === 0 ? [i] : []));
    expect((await pairs(here, run, 'known')).map(([step]) => step)).toEqual(even);
    expect((await list(here, [run])).map(({ name }) => name)).toEqual(['known', 'new 11', 'new 17', 'new 23', 'new 5']);
  });

  it('A6: points of a caller that cancels before its group starts are not stored', async () => {
    const here = scene();
    const run = await here.makeRun();
    await log(here, run, [point('m', 1, 1)]);
    const controller = new AbortController();
    const reason = new Error('the caller has left');
    const within = here.store.within({ signal: controller.signal });
    const logging = within.logMetrics(here.namespace, run.id, [point('m', 2, 2)]).catch((error: unknown) => error);
    controller.abort(reason);
    expect(await logging).toBe(reason);
    await log(here, run, [point('m', 3, 3)]);
    expect(await pairs(here, run)).toEqual([
      [1, 1],
      [3, 3],
    ]);
  });

  it('K-C6: points of known series cost a constant number of statements; the cost of reads does not grow with points', async () => {
    const here = scene();
    const run = await here.makeRun();
    const points = (count: number) => Array.from({ length: count }, (_, i) => point('m', i, i));
    await log(here, run, points(1));
    const cost = (count: number) => statementsOf(on.engine, () => log(here, run, points(count)));
    // On SQLite statements are calls within the process: one for each point.
    if (on.engine === 'postgres') expect([await cost(1), await cost(5000)]).toEqual([1, 1]);
    else await log(here, run, points(5000));
    const key = await onlySeries(here, run);
    const measured = await statementsOf(on.engine, () => here.store.measureSeries(here.namespace, [key], ALL));
    expect(measured).toBe(1);
  });

  it('ten thousand points of a thousand series are stored in one call', async () => {
    const here = scene();
    const run = await here.makeRun();
    const points = Array.from({ length: 10_000 }, (_, i) => point(`s${i % 1000}`, Math.floor(i / 1000), i));
    await log(here, run, points);
    expect(await countRows(on.sql, here.namespace)).toMatchObject({ metric_points: 10_000, metric_series: 1000 });
    const series = await list(here, [run], {}, 2000);
    const extents = await here.store.measureSeries(
      here.namespace,
      series.map(({ key }) => key),
      ALL,
    );
    expect(new Set([...extents.values()].map(({ points: count }) => count))).toEqual(new Set([10n]));
  });
});
