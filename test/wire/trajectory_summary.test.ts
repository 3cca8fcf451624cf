import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { SummaryKey } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, openWriter, type StepInit } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

describe.each(ENGINES)('M3: Summarize of trajectories, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let experimentId: string;
  let played: string;
  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    const { experiment } = await client.runs.createExperiment({ name: 'plates' });
    experimentId = experiment?.id ?? '';
    played = await makeRun('played');
    await play(played, 'open', 'big', [
      { reward: 1, metrics: { tokens: 10 } },
      { reward: 2, metrics: { tokens: 5 } },
    ]);
    await play(played, 'open', 'big', [{ reward: 5, metrics: { ticks: 60 } }]);
    await play(played, 'close', 'small', [{ reward: -1 }]);
    const trained = await makeRun('trained');
    await client.rollouts.upsertTasks({ tasks: [{ id: 'open' }] });
    const { stage } = await client.runs.getOrCreateStage({ runId: trained, kind: StageKind.EVAL, number: 1n });
    const rollouts = [{ groupNumber: 0n, number: 0n, taskId: 'open', labels: { model: 'big' } }];
    await client.rollouts.createRollouts({ stageId: stage?.id ?? '', rollouts });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  async function makeRun(name: string): Promise<string> {
    const { run } = await client.runs.createRun({ experimentId, name, initialStatus: Status.RUNNING });
    return run?.id ?? '';
  }

  async function play(runId: string, taskId: string, model: string, steps: readonly StepInit[]): Promise<void> {
    const { trajectory } = await client.trajectories.createTrajectory({ runId, taskId, labels: { model } });
    await using writer = await openWriter(client, { trajectoryId: trajectory?.id ?? '' });
    for (const step of steps) void writer.append(step);
  }

  it('counts trajectories beside rollouts with the same values, and never as rollouts', async () => {
    const dimensions = [{ key: SummaryKey.TASK }, { label: 'model' }];
    const { summaries, truncated } = await client.runs.summarize({ experimentId, dimensions });
    expect(truncated).toBe(false);
    expect(summaries.map(({ values }) => values)).toEqual([
      ['close', 'small'],
      ['open', 'big'],
    ]);
    const [close, open] = summaries;
    expect(close).toMatchObject({
      rolloutCount: 0n,
      trajectoryCount: 1n,
      stepCount: 1n,
      metricSums: {},
      finalRewardMean: -1,
      finalRewardMin: -1,
      finalRewardMedian: -1,
      finalRewardMax: -1,
    });
    expect(close?.finalRewardStd).toBeUndefined();
    expect(open).toMatchObject({
      rolloutCount: 1n,
      pendingCount: 1n,
      rewardCount: 0n,
      trajectoryCount: 2n,
      stepCount: 3n,
      metricSums: { tokens: 15, ticks: 60 },
      finalRewardMean: 4,
      finalRewardStd: Math.SQRT2,
      finalRewardMin: 3,
      finalRewardMedian: 4,
      finalRewardMax: 5,
    });
  });

  it('shows the sums of the first 256 metrics by name', async () => {
    const runId = await makeRun('measured');
    const metrics = (from: number) =>
      Object.fromEntries(Array.from({ length: 200 }, (_, i) => [`m${String(from + i).padStart(3, '0')}`, 1]));
    await play(runId, 'open', 'big', [{ metrics: metrics(0) }, { metrics: metrics(200) }]);
    const { summaries } = await client.runs.summarize({ runIds: [runId] });
    const names = Object.keys(summaries[0]?.metricSums ?? {}).sort();
    expect([names.length, names[0], names.at(-1)]).toEqual([256, 'm000', 'm255']);
  });
});
