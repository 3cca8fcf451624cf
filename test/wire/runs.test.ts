import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { NOBODY } from './rpcs/scene.ts';
import { collect, refusal, type WireClient } from './story.ts';
import { connect, WIRES, type WiresClient } from './wires.ts';

const BEYOND_DOUBLE = 2n ** 53n + 1n;
const VALUES = [Number.NaN, Infinity, -Infinity, 0.1, 1e300];
const CONFIG = '{ "lr": 1.0, "big": 9007199254740993, "ключ": "🌊" }';

describe('runs and experiments over every protocol', () => {
  let server: TestServer;
  const told = new Map<string, unknown>();
  beforeAll(async () => {
    server = await startTestServer();
  });
  afterAll(() => server.stop());

  /** A run with values that codecs easily lose; every reader must get it as returned here. */
  async function write({ runs, trajectories }: WireClient): Promise<string> {
    const { run } = await runs.createRun({
      experimentName: 'default',
      configJson: CONFIG,
      labels: { 'key ü': 'välue', empty: '' },
      plan: { stagePlans: [{ kind: StageKind.EVAL, stages: 1 }], concurrency: 3 },
      mainTrajectory: { root: { reward: 0 } },
      initialStatus: Status.RUNNING,
      heartbeatTimeout: { seconds: 2n, nanos: 500_000_000 },
    });
    const runId = run!.id;
    await runs.updateRun({
      runId,
      updateMask: { paths: ['metrics', 'status_message', 'heartbeat_timeout'] },
      metrics: Object.fromEntries(VALUES.map((value) => [`m ${value}`, value])),
      statusMessage: 'going – 例',
      heartbeatTimeout: { seconds: 3n },
    });
    const points = VALUES.map((value, i) => ({ key: 'loss', metricStep: BEYOND_DOUBLE + BigInt(i), value }));
    await runs.logMetrics({ runId, points });
    const stage = await runs.getOrCreateStage({ runId, kind: StageKind.EVAL, number: BEYOND_DOUBLE });
    await runs.updateStage({
      stageId: stage.stage!.id,
      updateMask: { paths: ['timings', 'total_substeps'] },
      timings: { rollout: { startTime: { seconds: 1n, nanos: 123_456_789 } } },
      totalSubsteps: 0n,
    });
    await trajectories.appendStep({ trajectoryId: run!.mainTrajectoryId, step: { stepNumber: 1n, reward: 0.25 } });
    await runs.branchRun({ runId, stepNumber: 0n, removedConfigPaths: ['/lr'], name: `branch ${randomUUID()}` });
    await runs.completeRun({ runId, message: 'done', resultJson: '[1.0]' });
    return runId;
  }

  async function read({ runs, server: watching }: WiresClient, runId: string): Promise<unknown> {
    const { run } = await runs.getRun({ runId });
    const tree = await runs.getRunTree({ runId });
    return {
      run,
      tree,
      compared: await runs.compareRuns({ runIds: tree.runs.map(({ id }) => id), endStepNumber: 9n }),
      listed: await runs.listRuns({ parentId: runId }),
      stages: await runs.listStages({ runId }),
      progress: await runs.getRun({ runId, progress: true }),
      history: await runs.listStatusChanges({ runId, ascending: true }),
      metrics: await collect(runs.readMetrics({ runIds: [runId] })),
      watched: await collect(
        watching.watch({ subjects: { it: { run: { runId, allStages: true, untilTerminal: true } } } }),
      ),
    };
  }

  it.each(WIRES)('M1, M4, M5: what $name writes, it reads unchanged', async (wire) => {
    const client = connect(wire, server.url);
    const runId = await write(client);
    const shown = (await read(client, runId)) as Record<string, unknown>;
    told.set(runId, shown);
    const { run, metrics, stages, watched, compared } = shown;
    const config = { configJson: '{"lr":1.0,"big":9007199254740993,"ключ":"🌊"}', configOverridesJson: CONFIG };
    const values = { labels: { 'key ü': 'välue', empty: '' }, rewardSum: 0.25, nextStepNumber: 2n };
    const timeout = { heartbeatTimeout: { seconds: 3n, nanos: 0 } };
    expect(run).toMatchObject({ ...config, ...values, ...timeout, status: Status.COMPLETED, resultJson: '[1.0]' });
    expect(Object.values((run as { metrics: object }).metrics).sort()).toEqual(VALUES.toSorted());
    const metricSteps = VALUES.map((_, i) => BEYOND_DOUBLE + BigInt(i));
    expect(metrics).toMatchObject([{ series: [{ key: 'loss', metricSteps, values: VALUES, nanCount: 1n }] }]);
    const timings = { rollout: { startTime: { seconds: 1n, nanos: 123_456_789 } } };
    expect(stages).toMatchObject({ stages: [{ number: BEYOND_DOUBLE, timings, totalSubsteps: 0n }] });
    const changes = { run: { id: runId, configJson: '' }, progress: { percent: 100 } };
    expect(watched).toMatchObject([{ name: 'it', run: changes, caughtUp: true }]);
    const difference = { path: '/lr', valueJson: '1', otherValueJson: '' };
    expect(compared).toMatchObject({ comparisons: [{ configDifferences: [difference] }] });
  });

  it.each(WIRES)(
    'M1, M4, M5: $name reads the same as the next protocol, and so the same as every other',
    async (wire) => {
      expect(told.size).toBe(WIRES.length);
      const [runId, shown] = [...told][(WIRES.indexOf(wire) + 1) % WIRES.length]!;
      expect(await read(connect(wire, server.url), runId)).toEqual(shown);
    },
  );

  it.each(WIRES)('FM6: $name gets the reason of an error, also at the start of a stream', async (wire) => {
    const { runs } = connect(wire, server.url);
    const missing = { reason: 'RUN_NOT_FOUND', metadata: { run: NOBODY } };
    expect(await refusal(runs.getRun({ runId: NOBODY }))).toMatchObject(missing);
    expect(await refusal(collect(runs.readMetrics({ runIds: [NOBODY] })))).toMatchObject(missing);
  });
});
