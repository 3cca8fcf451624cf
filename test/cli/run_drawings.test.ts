import { create, type MessageInitShape } from '@bufbuild/protobuf';
import fc from 'fast-check';
import pc from 'picocolors';
import { describe, expect, it } from 'vitest';
import { ProgressSchema, RunSchema, StageKind, StageSchema } from '../../gen/es/anabranch/v1/run_pb.js';
import { RunWithProgressSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { widthOf } from '../../src/cli/columns.ts';
import { sparkline } from '../../src/cli/metric_lines.ts';
import { countText, durationText, percentText, progressBar } from '../../src/cli/progress.ts';
import { configLines, runReport } from '../../src/cli/run_report.ts';
import { runsTable } from '../../src/cli/runs_table.ts';
import { screenLines, stageText } from '../../src/cli/watch_text.ts';

const paint = pc.createColors(false);
const pointsOf = (...values: number[]) => values.map((value, at) => ({ at, value }));
const { NaN: NAN, POSITIVE_INFINITY: INFINITY } = Number;

describe('a sparkline', () => {
  it.each([
    [[], ''],
    [[7], '▅'],
    [[1, 1, 1], '▅▅▅'],
    [[0, 1, 2, 3, 4, 5, 6, 7], '▁▂▃▄▅▆▇█'],
    [[0, NAN, 10], '▁█'],
    [[0, INFINITY, -INFINITY, 10], '▁█▁█'],
    [[INFINITY, NAN], '█'],
    [[-Number.MAX_VALUE, 0, Number.MAX_VALUE], '▁▅█'],
    [[5e-324, 0], '█▁'],
  ])('of %j is %j', (values, drawn) => {
    expect(sparkline(pointsOf(...values), 24)).toBe(drawn);
  });

  it('of a long series shows the mean of each range of steps, and a gap for ranges without points', () => {
    const saw = Array.from({ length: 1000 }, (_, i) => ({ at: i, value: Math.floor(i / 125) }));
    expect(sparkline(saw, 8)).toBe('▁▂▃▄▅▆▇█');
    const apart = [0, 1, 2, 997, 998, 999].map((at) => ({ at, value: at }));
    expect(sparkline(apart, 5)).toBe('▁   █');
  });

  it('is never wider than requested', () => {
    const points = fc.array(fc.record({ at: fc.maxSafeInteger(), value: fc.double() }), { maxLength: 100 });
    fc.assert(
      fc.property(points, fc.integer({ min: 1, max: 40 }), (some, columns) => {
        const ascending = some.toSorted((a, b) => a.at - b.at);
        expect(widthOf(sparkline(ascending, columns))).toBeLessThanOrEqual(columns);
      }),
    );
  });
});

describe('the text of a stage', () => {
  const ofStatus = (status: Status, fields: MessageInitShape<typeof StageSchema> = {}) =>
    stageText(create(StageSchema, { status, phase: 'sampling', ...fields }));
  const queueCloseTime = { seconds: 1n };

  it('says that the queue is closed, unless the stage is terminal', () => {
    expect(ofStatus(Status.RUNNING)).toBe('running, sampling');
    expect(ofStatus(Status.RUNNING, { queueCloseTime })).toBe('running, sampling, queue closed');
    expect(ofStatus(Status.COMPLETED, { queueCloseTime })).toBe('completed, sampling');
  });
});

describe('the text of progress', () => {
  it.each([
    [-3, '0 s'],
    [0.4, '0 s'],
    [59.4, '59 s'],
    [59.6, '1 min'],
    [3569, '59 min'],
    [3571, '1.0 h'],
    [34_200, '9.5 h'],
    [36_000, '10 h'],
    [170_000, '47 h'],
    [172_800, '2.0 d'],
    [86_313_600, '999 d'],
    [86_400_000, '2.7 y'],
    [1e9, '32 y'],
    [1e18, '>999 y'],
  ])('%d seconds are %s', (seconds, text) => {
    expect(durationText(seconds)).toBe(text);
  });

  it('says that it is done only at 100 %', () => {
    expect([0, 99.99, 100, 100.1, -1].map(percentText)).toEqual(['  0 %', ' 99 %', '100 %', '100 %', '  0 %']);
    expect([0, 50, 99.99, 100, 250, -1].map((percent) => progressBar(percent, 4))).toEqual([
      '────',
      '━━──',
      '━━━─',
      '━━━━',
      '━━━━',
      '────',
    ]);
  });

  it('shows the counts that are set', () => {
    expect(countText(0n, 0n, 'turns')).toBe('');
    expect(countText(3n, 0n, 'turns')).toBe('3 turns');
    expect(countText(1n, 0n, 'turns')).toBe('1 turn');
    expect(countText(1n, 8n, 'turns')).toBe('1 of 8 turns');
    expect(countText(1n, 8n)).toBe('1 of 8');
  });
});

describe('the lines of a config', () => {
  const linesOf = (configJson: string, configOverridesJson = '', removedConfigPaths: string[] = []) =>
    configLines(create(RunSchema, { configJson, configOverridesJson, removedConfigPaths }), 78);

  it('show numbers as written, and mark values that the run states itself', () => {
    expect(
      linesOf('{"a":{"b":1.50,"c":{"d":9007199254740993}},"e":[1e400,{}],"f":null,"g":{}}', '{"a":{"b":1.5}}'),
    ).toEqual(['a.b    1.50 *', 'a.c.d  9007199254740993', 'e      [1e400,{}]', 'f      null', 'g      {}']);
  });

  it('end with the paths that the run removed, as sent, in one line', () => {
    expect(linesOf('{"a":1}', '', ['/opt/eps', '/a~1b'])).toEqual(['a  1', 'removed: /opt/eps, /a~1b']);
    expect(linesOf('{}', '', ['/a\u001b[2J'])).toEqual(['removed: /a [2J']);
    const many = linesOf(
      '{}',
      '',
      Array.from({ length: 100 }, (_, i) => `/key ${i}`),
    );
    expect(many).toHaveLength(1);
    expect(widthOf(many[0]!)).toBeLessThanOrEqual(78);
  });

  it('are empty for an empty config, and limited for a large one', () => {
    expect(linesOf('{}')).toEqual([]);
    expect(linesOf('')).toEqual([]);
    const large = linesOf(JSON.stringify(Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`key ${i}`, i]))));
    expect(large).toHaveLength(25);
    expect(large.at(-1)).toBe('… 76 more; --json shows all');
  });
});

describe('drawings of runs', () => {
  const name = fc.oneof(
    fc.string({ unit: 'grapheme' }),
    fc.constantFrom('日本語の実験', '🤖'.repeat(40), 'a\u001b[2Jb\nc\u202Ed', 'x'.repeat(256), ''),
  );
  const count = fc.bigInt(0n, 10n ** 12n);
  const maybe = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: undefined });
  const time = maybe(fc.record({ seconds: fc.bigInt(0n, 4_000_000_000n), nanos: fc.constant(0) }));
  const numbers = fc.dictionary(name, fc.double(), { maxKeys: 5 });

  const run = fc.record({
    id: fc.uuid(),
    name,
    experimentName: name,
    description: name,
    number: count,
    nextStepNumber: maybe(count),
    rewardSum: maybe(fc.double()),
    mainTrajectoryId: fc.constantFrom('', '01990000-0000-7000-8000-000000000001'),
    parentId: fc.constant('01990000-0000-7000-8000-000000000002'),
    branchPoint: maybe(count),
    status: fc.integer({ min: 1, max: 7 }),
    statusMessage: name,
    phase: name,
    stale: fc.boolean(),
    metrics: numbers,
    labels: fc.dictionary(name, name, { maxKeys: 3 }),
    configJson: fc.dictionary(name, fc.jsonValue()).map((config) => JSON.stringify(config)),
    removedConfigPaths: fc.array(name, { maxLength: 3 }),
    resultJson: fc.json(),
    startTime: time,
    endTime: time,
    heartbeatTime: time,
    createTime: time,
  });
  const progress = fc.record({
    percent: maybe(fc.double({ min: 0, max: 100, noNaN: true })),
    estimatedRemaining: maybe(fc.record({ seconds: fc.bigInt(0n, 10n ** 9n), nanos: fc.constant(0) })),
    turnsDone: count,
    turnsExpected: count,
    substepsDone: count,
    substepsExpected: count,
    kinds: fc.array(
      fc.record({ kind: fc.constantFrom(1, 2, 3), planned: count, created: count, completed: count, failed: count }),
    ),
  });
  const stage = fc.record({
    id: fc.uuid(),
    kind: fc.constantFrom(StageKind.TRAIN_STEP, StageKind.EVAL, StageKind.BASELINE),
    number: count,
    status: fc.integer({ min: 1, max: 7 }),
    statusMessage: name,
    phase: name,
    modelCheckpointUri: name,
    metrics: numbers,
    completedSubsteps: count,
    totalSubsteps: maybe(count),
    startTime: time,
    endTime: time,
  });
  const series = fc.record({
    key: name,
    values: fc.array(fc.double(), { maxLength: 50 }),
    pointCount: count,
  });
  const columns = fc.integer({ min: 76, max: 80 });
  const made = <T extends object>(init: T) =>
    Object.fromEntries(Object.entries(init).filter(([, value]) => value !== undefined)) as T;
  const runOf = (init: object) => create(RunSchema, made(init) as MessageInitShape<typeof RunSchema>);
  const progressOf = (init: object) => create(ProgressSchema, made(init) as MessageInitShape<typeof ProgressSchema>);
  const stageOf = (init: object) => create(StageSchema, made(init) as MessageInitShape<typeof StageSchema>);
  const fits = (lines: readonly string[], columns: number) => {
    for (const line of lines) expect(widthOf(line)).toBeLessThanOrEqual(columns);
    expect(lines.join('')).not.toMatch(/\p{Cc}|\u202E/u);
  };

  it('lists are never wider than requested, and contain no control characters for the terminal', () => {
    const rows = fc.array(fc.tuple(run, progress), { minLength: 1, maxLength: 10 });
    fc.assert(
      fc.property(rows, columns, fc.boolean(), fc.boolean(), (some, columns, withExperiment, withIds) => {
        const runs = some.map(([run, progress]) =>
          create(RunWithProgressSchema, { run: runOf(run), progress: progressOf(progress) }),
        );
        const lines = runsTable(runs, { columns, paint, withExperiment, withIds });
        expect(lines).toHaveLength(runs.length + 1);
        fits(lines, columns);
      }),
    );
  });

  it('pages and live pictures are never wider than requested, and contain no control characters for the terminal', () => {
    const parts = fc.tuple(run, progress, fc.array(stage, { maxLength: 12 }), fc.array(series, { maxLength: 30 }));
    fc.assert(
      fc.property(parts, columns, ([head, far, some, logged], columns) => {
        const [run, progress, stages] = [runOf(head), progressOf(far), some.map(stageOf)];
        const metrics = logged.map(({ key, values, pointCount }) => ({
          runId: '',
          stageId: '',
          key,
          values,
          pointCount,
          nanCount: 0n,
          metricSteps: values.map((_, i) => BigInt(i)),
          $typeName: 'anabranch.v1.MetricSeries' as const,
        }));
        const page = {
          run,
          progress,
          stages,
          earlierStages: true,
          series: metrics,
          rollouts: [],
          moreRollouts: false,
          tree: [run, runOf({ id: run.parentId, name: run.phase })],
          keys: [],
        };
        fits(runReport(page, { columns, paint, stages: 10 }), columns);
        const picture = {
          run,
          progress,
          stages: new Map(stages.map((stage) => [stage.id, stage])),
          groups: new Map(),
          rollouts: new Map(),
          series: new Map(),
          changed: { run: true, stages, groups: [], rollouts: [], series: [], progress: true },
        };
        const lines = screenLines(picture, { columns, paint });
        expect(lines.length).toBeLessThan(20);
        fits(lines, columns);
      }),
    );
  });
});
