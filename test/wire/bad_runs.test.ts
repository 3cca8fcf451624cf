import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { Bystander, expectRefused, INVALID } from './bad_call.ts';
import { MOVES, NAMES, PAGES, PARENTS, SERIES, VALUES } from './bad_runs.ts';
import { makeRunScene, type RunScene } from './rpcs/run_scene.ts';
import { collect } from './story.ts';

/** Bad input for runs and experiments gets a clear error with the field, and changes nothing. */

describe.each(ENGINES)('bad input for runs and experiments, on %s', (engine) => {
  let server: TestServer;
  let scene: RunScene;
  let bystander: Bystander;
  let before: unknown;

  beforeAll(async () => {
    server = await startTestServer({ engine });
    // The HTTP client of Node would give up before it has sent a body that is far too large.
    const transport = createGrpcTransport({ baseUrl: server.url, nodeOptions: { maxSessionMemory: 1000 } });
    scene = await makeRunScene({
      trajectories: createClient(TrajectoryService, transport),
      states: createClient(StateService, transport),
      runs: createClient(RunService, transport),
      rollouts: createClient(RolloutService, transport),
    });
    before = await picture();
    bystander = await Bystander.open(scene);
  });
  // Once for all calls: a refused call undoes nothing that an earlier one did.
  afterAll(async () => {
    await bystander.close();
    expect(await picture(), 'nothing was changed').toEqual(before);
    await server.stop();
  });

  /** All data of the scene's experiment. */
  async function picture(): Promise<unknown> {
    const { runs, experimentId, runId, branchId, bareId } = scene;
    const full = { view: View.FULL };
    return [
      await runs.getExperiment({ experimentId }),
      await runs.listRuns({ experimentId, ...full }),
      await Promise.all([runId, branchId, bareId].map((id) => runs.listStages({ runId: id, ...full }))),
      await Promise.all([runId, branchId, bareId].map((id) => runs.listStatusChanges({ runId: id }))),
      await collect(runs.readMetrics({ runIds: [runId, branchId, bareId] })),
    ];
  }

  it.each([...MOVES, ...NAMES, ...PARENTS, ...VALUES, ...SERIES, ...PAGES])(
    'FM6: $what: $reason',
    async ({ call, ...wanted }) => {
      await expectRefused(call(scene), wanted);
      await bystander.goesOn();
      expect(server.counts().sessions, 'all on one connection').toBe(1);
    },
  );

  it('M1, W11: metrics that are NaN or infinite are stored, in series and in maps', async () => {
    const { runs } = scene;
    const { run } = await runs.createRun({});
    const runId = run!.id;
    const values = [Number.NaN, Infinity, -Infinity, -0, 1];
    const points = values.map((value, i) => ({ key: 'odd', metricStep: BigInt(i) - 2n, value }));
    await runs.logMetrics({ runId, points });
    expect(await collect(runs.readMetrics({ runIds: [runId] }))).toMatchObject([
      { series: [{ metricSteps: [-2n, -1n, 0n, 1n, 2n], values, pointCount: 5n, nanCount: 1n }] },
    ]);
    const metrics = { nan: Number.NaN, least: -Infinity };
    const updated = await runs.updateRun({ runId, updateMask: { paths: ['metrics'] }, metrics });
    expect(updated.run?.metrics).toEqual(metrics);
    expect((await runs.getRun({ runId })).run?.metrics).toEqual(metrics);
  });

  it('FM7: metrics and timings that exceed the limit over two updates are refused, and the first ones stay', async () => {
    const { runs } = scene;
    const runId = (await runs.createRun({})).run!.id;
    const stageId = (await runs.getOrCreateStage({ runId, kind: StageKind.EVAL, number: 0n })).stage!.id;
    const many = <T>(prefix: string, count: number, value: T) =>
      Object.fromEntries(Array.from({ length: count }, (_, i) => [`${prefix}${i}`, value]));
    const metrics = (prefix: string) => ({ updateMask: { paths: ['metrics'] }, metrics: many(prefix, 200, 1) });
    const timings = (prefix: string) => ({ updateMask: { paths: ['timings'] }, timings: many(prefix, 40, {}) });
    await runs.updateRun({ runId, ...metrics('a') });
    await runs.updateStage({ stageId, ...metrics('a') });
    await runs.updateStage({ stageId, ...timings('a') });
    await expectRefused(runs.updateRun({ runId, ...metrics('b') }), { ...INVALID, field: 'metrics' });
    await expectRefused(runs.updateStage({ stageId, ...metrics('b') }), { ...INVALID, field: 'metrics' });
    await expectRefused(runs.updateStage({ stageId, ...timings('b') }), { ...INVALID, field: 'timings' });
    expect((await runs.getRun({ runId })).run?.metrics).toEqual(metrics('a').metrics);
    const { stage } = await runs.getStage({ stageId });
    expect([Object.keys(stage!.metrics).length, Object.keys(stage!.timings).length]).toEqual([200, 40]);
  });

  it('M2: the maximal number of substeps, in many stages, is summed without overflow', async () => {
    const { runs } = scene;
    const name = 'with substeps';
    const runId = (await runs.createRun({ name })).run!.id;
    const completedSubsteps = 10n ** 12n;
    for (let number = 1n; number <= 3n; number += 1n) {
      const initialStatus = Status.RUNNING;
      const { stage } = await runs.getOrCreateStage({ runId, kind: StageKind.EVAL, number, initialStatus });
      const stageId = stage!.id;
      await runs.updateStage({ stageId, updateMask: { paths: ['completed_substeps'] }, completedSubsteps });
      if (number > 1n) await runs.completeStage({ stageId });
    }
    const { progress } = await runs.getRun({ runId, progress: true });
    expect(progress?.substepsDone).toBe(3n * completedSubsteps);
    const { runs: listed } = await runs.listRuns({ name });
    expect(listed[0]?.progress).toEqual(progress);
  });

  it('M2: a plan whose product exceeds the range of a field still has a progress', async () => {
    const { runs } = scene;
    const runId = (await runs.createRun({})).run!.id;
    const vast = {
      kind: StageKind.EVAL,
      stages: 1e7,
      groupsPerStage: 1e6,
      groupSize: 1e6,
      maxTurns: 1e7,
      substeps: 1e7,
    };
    await runs.updateRun({ runId, updateMask: { paths: ['plan'] }, plan: { stagePlans: [vast] } });
    await runs.startRun({ runId });
    const { progress } = await runs.getRun({ runId, progress: true });
    expect(progress).toMatchObject({ percent: 0, turnsExpected: 2n ** 63n - 1n });
    expect(progress?.estimatedRemaining?.seconds).toBe(315_576_000_000n);
  });
});
