import { type Client, Code, createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { IfExists, RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { OnBranches, TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { type BadCall, Bystander, expectRefused, INVALID } from './bad_call.ts';
import { makeRunScene, type RunScene } from './rpcs/run_scene.ts';
import { NOBODY } from './rpcs/scene.ts';
import { collect } from './story.ts';

/** Bad input to the books of runs gets a clear error with the field named, and changes nothing. */

type Bad = BadCall<RunScene>;
type Runs = Client<typeof RunService>;

const ILLEGAL = { code: Code.FailedPrecondition, reason: 'ILLEGAL_TRANSITION' } as const;
const CONFLICT = { code: Code.AlreadyExists, reason: 'RESULT_CONFLICT' } as const;
const TAKEN = { code: Code.AlreadyExists, reason: 'RUN_EXISTS' } as const;

const MOVES: readonly Bad[] = [
  {
    what: 'pause of a run that has not begun',
    call: ({ runs, bareId }) => runs.pauseRun({ runId: bareId }),
    ...ILLEGAL,
    metadata: { status: 'PENDING', verb: 'pause' },
  },
  {
    what: 'start of a run that has ended',
    call: ({ runs, branchId }) => runs.startRun({ runId: branchId }),
    ...ILLEGAL,
    metadata: { status: 'COMPLETED', verb: 'start' },
  },
  {
    what: 'reopening of a run that goes on',
    call: ({ runs, bareId }) => runs.reopenRun({ runId: bareId }),
    ...ILLEGAL,
  },
  {
    what: 'failure of a run that is complete',
    call: ({ runs, branchId }) => runs.failRun({ runId: branchId }),
    ...ILLEGAL,
  },
  {
    what: 'completion of a stage that has not begun',
    call: ({ runs, baselineId }) => runs.completeStage({ stageId: baselineId }),
    ...ILLEGAL,
    metadata: { status: 'PENDING', verb: 'complete' },
  },
  {
    what: 'completion with another result',
    call: ({ runs, branchId }) => runs.completeRun({ runId: branchId, message: 'done', resultJson: '{"best":6}' }),
    ...CONFLICT,
    metadata: { status: 'COMPLETED', verb: 'complete' },
  },
  {
    what: 'run that begins at its end',
    call: ({ runs }) => runs.createRun({ initialStatus: Status.COMPLETED }),
    ...INVALID,
    field: 'initial_status',
  },
  {
    what: 'stage that begins paused',
    call: ({ runs, runId }) =>
      runs.getOrCreateStage({ runId, kind: StageKind.EVAL, number: 7n, initialStatus: Status.PAUSED }),
    ...INVALID,
    field: 'initial_status',
  },
];

const NAMES: readonly Bad[] = [
  {
    what: 'name of another experiment',
    call: ({ runs, experimentName }) => runs.createExperiment({ name: experimentName }),
    code: Code.AlreadyExists,
    reason: 'EXPERIMENT_EXISTS',
  },
  {
    what: 'experiment without a name',
    call: ({ runs }) => runs.createExperiment({}),
    ...INVALID,
    field: 'name',
  },
  {
    what: 'name of another run of the experiment',
    call: ({ runs, experimentId }) => runs.createRun({ experimentId, name: 'main' }),
    ...TAKEN,
  },
  {
    what: 'name of another run, for a branch',
    call: ({ runs, runId }) => runs.branchRun({ runId, stepNumber: 0n, name: 'bare' }),
    ...TAKEN,
  },
  {
    what: 'renaming to the name of another run',
    call: ({ runs, runId }) => runs.updateRun({ runId, updateMask: { paths: ['name'] }, name: 'bare' }),
    ...TAKEN,
  },
  {
    what: 'renaming to nothing',
    call: ({ runs, runId }) => runs.updateRun({ runId, updateMask: { paths: ['name'] } }),
    ...INVALID,
    field: 'name',
  },
  {
    what: 'finding a run that exists without its name',
    call: ({ runs }) => runs.createRun({ ifExists: IfExists.RETURN_EXISTING }),
    ...INVALID,
    field: 'name',
  },
  {
    what: 'run that exists with another config',
    call: ({ runs, experimentId }) =>
      runs.createRun({
        experimentId,
        name: 'main',
        ifExists: IfExists.RETURN_EXISTING,
        configJson: '{"seed":3}',
        plan: { concurrency: 1 },
      }),
    code: Code.FailedPrecondition,
    reason: 'CONFIG_MISMATCH',
    metadata: { fields: expect.stringMatching(/^config_json\/seed,plan\./) },
  },
  {
    what: 'experiment named twice',
    call: ({ runs, experimentId, experimentName }) => runs.createRun({ experimentId, experimentName }),
    ...INVALID,
    field: 'experiment_name',
  },
  {
    what: 'run named by id and by name',
    call: ({ runs, runId }) => runs.getRun({ runId, runName: 'main' }),
    ...INVALID,
    field: 'run_id',
  },
  { what: 'run named by nothing', call: ({ runs }) => runs.getRun({}), ...INVALID, field: 'run_id' },
  {
    what: 'experiment of a run that is named by its id',
    call: ({ runs, runId, experimentName }) => runs.getRun({ runId, experimentName }),
    ...INVALID,
    field: 'experiment_name',
  },
];

const PARENTS: readonly Bad[] = [
  {
    what: 'branch of a run that is not there',
    call: ({ runs }) => runs.branchRun({ runId: NOBODY, stepNumber: 0n }),
    code: Code.NotFound,
    reason: 'RUN_NOT_FOUND',
    metadata: { run: NOBODY },
  },
  {
    what: 'run that would be its own parent',
    call: ({ runs, runId }) => runs.branchRun({ runId, stepNumber: 0n, branchId: runId }),
    ...TAKEN,
  },
  {
    what: 'trajectory that would be its own parent',
    call: ({ runs, runId, mainId }) => runs.branchRun({ runId, stepNumber: 0n, branchTrajectoryId: mainId }),
    code: Code.AlreadyExists,
    reason: 'TRAJECTORY_EXISTS',
  },
  {
    what: 'branch point that the run has not reached',
    call: ({ runs, branchId }) => runs.branchRun({ runId: branchId, stepNumber: 3n }),
    code: Code.OutOfRange,
    reason: 'BRANCH_POINT_BEYOND_END',
    metadata: { step_number: '3', next_step_number: '3' },
  },
  {
    what: 'branch of a run without a trajectory',
    call: ({ runs, bareId }) => runs.branchRun({ runId: bareId, stepNumber: 0n }),
    code: Code.FailedPrecondition,
    reason: 'NO_MAIN_TRAJECTORY',
  },
  { what: 'no branch point', call: ({ runs, runId }) => runs.branchRun({ runId }), ...INVALID, field: 'step_number' },
  {
    what: 'trajectory of a run and of the experiment of another',
    call: async ({ trajectories, runs, runId }) => {
      const { experiment } = await runs.createExperiment({ name: `other than that of ${runId}/${Math.random()}` });
      return trajectories.createTrajectory({ runId, experimentId: experiment!.id });
    },
    ...INVALID,
    field: 'experiment_id',
  },
  {
    what: 'stage of another run',
    call: ({ runs, bareId, evalId }) => runs.logMetrics({ runId: bareId, points: [{ key: 'a', stageId: evalId }] }),
    code: Code.NotFound,
    reason: 'STAGE_NOT_FOUND',
  },
  {
    what: 'root that is not step 0',
    call: ({ runs }) => runs.createRun({ mainTrajectory: { root: { stepNumber: 1n } } }),
    ...INVALID,
    field: 'main_trajectory.root.step_number',
  },
  {
    what: 'deletion that would keep what is shared',
    call: ({ runs, runId }) => runs.deleteRun({ runId, onBranches: OnBranches.KEEP_SHARED }),
    ...INVALID,
    field: 'on_branches',
  },
  {
    what: 'deletion of a run from which others branch off',
    call: ({ runs, runId }) => runs.deleteRun({ runId }),
    code: Code.FailedPrecondition,
    reason: 'HAS_BRANCHES',
    metadata: { branch_ids: expect.stringMatching(/^[0-9a-f-]{36}$/) },
  },
];

const labels = (count: number, key: string, value: string) =>
  Object.fromEntries(Array.from({ length: count }, (_, i) => [`${key}${i}`, value]));
/** A JSON object of so many bytes. */
const large = (bytes: number, key = 'k') => `{"${key}":"${'x'.repeat(bytes - key.length - 7)}"}`;
const deep = `${'{"a":'.repeat(LIMITS.configDepth + 1)}1${'}'.repeat(LIMITS.configDepth + 1)}`;

const VALUES: readonly Bad[] = [
  ...[labels(65, 'k', 'v'), labels(1, 'k'.repeat(64), 'v'), labels(1, 'k', 'v'.repeat(257)), { '': 'v' }].map(
    (some, i): Bad => ({
      what: `labels over their limits: ${['too many', 'a long key', 'a long value', 'an empty key'][i]}`,
      call: ({ runs }) => runs.createRun({ labels: some }),
      ...INVALID,
      field: i === 0 ? 'labels' : `labels["${Object.keys(some)[0]}"]`,
    }),
  ),
  ...['[1]', '3', 'null', '"{}"', '{"a":1,}', '{', deep].map(
    (configJson): Bad => ({
      what: `config that is no JSON object: ${configJson.slice(0, 20)}`,
      call: ({ runs }) => runs.createRun({ configJson }),
      ...INVALID,
      field: 'config_json',
    }),
  ),
  {
    what: 'overrides that are a list',
    call: ({ runs, runId }) => runs.branchRun({ runId, stepNumber: 0n, configOverridesJson: '[]' }),
    ...INVALID,
    field: 'config_overrides_json',
  },
  {
    what: 'default config that is a number',
    call: ({ runs, experimentId }) =>
      runs.updateExperiment({ experimentId, updateMask: { paths: ['default_config_json'] }, defaultConfigJson: '1' }),
    ...INVALID,
    field: 'default_config_json',
  },
  {
    what: 'config over its limit',
    call: ({ runs }) => runs.createRun({ configJson: large(LIMITS.configBytes + 1) }),
    ...INVALID,
    field: 'config_json',
  },
  {
    what: 'effective config over its limit',
    call: async ({ runs, trajectories }) => {
      const make = { configJson: large(LIMITS.configBytes, 'a'), mainTrajectory: { root: {} } };
      const { run } = await runs.createRun(make);
      const second = { stepNumber: 0n, configOverridesJson: large(LIMITS.configBytes, 'b') };
      const branch = await runs.branchRun({ runId: run!.id, ...second });
      const { trajectory } = await trajectories.getTrajectory({ trajectoryId: branch.run!.mainTrajectoryId });
      expect(trajectory?.nextStepNumber).toBe(1n);
      return runs.branchRun({ runId: branch.run!.id, stepNumber: 0n, configOverridesJson: '{"one":"too many"}' });
    },
    ...INVALID,
    field: 'config_overrides_json',
  },
  {
    what: 'metadata that is no JSON',
    call: ({ runs }) => runs.createRun({ metadataJson: "{'a': 1}" }),
    ...INVALID,
    field: 'metadata_json',
  },
  {
    what: 'result that is no JSON',
    call: ({ runs, runId }) => runs.completeRun({ runId, resultJson: 'NaN' }),
    ...INVALID,
    field: 'result_json',
  },
  {
    what: 'plan with a kind of stage twice',
    call: ({ runs }) =>
      runs.createRun({ plan: { stagePlans: [{ kind: StageKind.EVAL }, { kind: StageKind.EVAL, stages: 2 }] } }),
    ...INVALID,
    field: 'plan.stage_plans',
  },
  {
    what: 'plan without a kind of stage',
    call: ({ runs }) => runs.createRun({ plan: { stagePlans: [{ stages: 2 }] } }),
    ...INVALID,
    field: 'plan.stage_plans[0].kind',
  },
  {
    what: 'plan with fewer than no stages',
    call: ({ runs, runId }) =>
      runs.updateRun({
        runId,
        updateMask: { paths: ['plan'] },
        plan: { stagePlans: [{ kind: StageKind.EVAL, stages: -1 }] },
      }),
    ...INVALID,
    field: 'plan.stage_plans[0].stages',
  },
  ...[{ seconds: 0n, nanos: 999_999_999 }, { seconds: 2_592_001n }, { seconds: 60n, nanos: -1 }].map(
    (heartbeatTimeout): Bad => ({
      what: `heartbeat timeout of ${heartbeatTimeout.seconds} s and ${heartbeatTimeout.nanos ?? 0} ns`,
      call: ({ runs }) => runs.createRun({ heartbeatTimeout }),
      ...INVALID,
      field: 'heartbeat_timeout',
    }),
  ),
  {
    what: 'substeps below none',
    call: ({ runs, evalId }) =>
      runs.updateStage({ stageId: evalId, updateMask: { paths: ['completed_substeps'] }, completedSubsteps: -1n }),
    ...INVALID,
    field: 'completed_substeps',
  },
  {
    what: 'timing at a time that is none',
    call: ({ runs, evalId }) =>
      runs.updateStage({
        stageId: evalId,
        updateMask: { paths: ['timings'] },
        timings: { rollout: { endTime: { seconds: 1n << 40n } } },
      }),
    ...INVALID,
    field: 'timings["rollout"].end_time',
  },
  {
    what: 'metrics over their number, in two updates',
    call: async ({ runs, baselineId }) => {
      const metrics = Object.fromEntries(Array.from({ length: LIMITS.metrics + 1 }, (_, i) => [`m${i}`, i]));
      return runs.updateStage({ stageId: baselineId, updateMask: { paths: ['metrics'] }, metrics });
    },
    ...INVALID,
    field: 'metrics',
  },
  ...['status', 'config_json', 'metrics.loss', '*'].map(
    (path): Bad => ({
      what: `update mask with the field ${path}`,
      call: ({ runs, runId }) => runs.updateRun({ runId, updateMask: { paths: ['phase', path] } }),
      ...INVALID,
      field: 'update_mask',
    }),
  ),
  {
    what: 'update mask that names nothing',
    call: ({ runs, evalId }) => runs.updateStage({ stageId: evalId, updateMask: {} }),
    ...INVALID,
    field: 'update_mask',
  },
  {
    what: 'update without a mask',
    call: ({ runs, experimentId }) => runs.updateExperiment({ experimentId, description: 'x' }),
    ...INVALID,
    field: 'update_mask',
  },
  {
    what: 'stage without a number',
    call: ({ runs, runId }) => runs.getOrCreateStage({ runId, kind: StageKind.EVAL }),
    ...INVALID,
    field: 'number',
  },
  {
    what: 'stage without a kind',
    call: ({ runs, runId }) => runs.getOrCreateStage({ runId, number: 1n }),
    ...INVALID,
    field: 'kind',
  },
  {
    what: 'stage of a run, without its kind',
    call: ({ runs, runId }) => runs.getStage({ runId, number: 1n }),
    ...INVALID,
    field: 'kind',
  },
  {
    what: 'stage by id and number',
    call: ({ runs, evalId }) => runs.getStage({ stageId: evalId, number: 1n }),
    ...INVALID,
    field: 'number',
  },
  {
    what: 'history of two things',
    call: ({ runs, runId, evalId }) => runs.listStatusChanges({ runId, stageId: evalId }),
    ...INVALID,
    field: 'run_id',
  },
  {
    what: 'comparison of a run with nothing',
    call: ({ runs, runId }) => runs.compareRuns({ runIds: [runId] }),
    ...INVALID,
    field: 'run_ids',
  },
  {
    what: 'comparison of a run with itself, spelt otherwise',
    call: ({ runs, runId }) => runs.compareRuns({ runIds: [runId, runId.toUpperCase()] }),
    ...INVALID,
    field: 'run_ids',
  },
  {
    what: 'comparison of 21 runs',
    call: ({ runs }) => runs.compareRuns({ runIds: Array.from({ length: 21 }, () => crypto.randomUUID()) }),
    ...INVALID,
    field: 'run_ids',
  },
  {
    what: 'comparison that would list too many rewards',
    call: ({ runs, runId, branchId }) => runs.compareRuns({ runIds: [runId, branchId], endStepNumber: 1001n }),
    ...INVALID,
    field: 'end_step_number',
  },
];

const point = (key: string) => ({ key, value: 1 });

const SERIES: readonly Bad[] = [
  {
    what: 'metric with a key of 10 KB',
    call: ({ runs, runId }) => runs.logMetrics({ runId, points: [point('a'), point('k'.repeat(10_000))] }),
    ...INVALID,
    field: 'points[1].key',
  },
  {
    what: 'metric without a key',
    call: ({ runs, runId }) => runs.logMetrics({ runId, points: [point('')] }),
    ...INVALID,
    field: 'points[0].key',
  },
  {
    what: 'no points',
    call: ({ runs, runId }) => runs.logMetrics({ runId, points: [] }),
    ...INVALID,
    field: 'points',
  },
  {
    what: 'more points than one call may hold',
    call: ({ runs, runId }) =>
      runs.logMetrics({ runId, points: Array.from({ length: LIMITS.metricPoints + 1 }, () => point('a')) }),
    ...INVALID,
    field: 'points',
  },
  {
    what: 'a million points in one call',
    call: ({ runs, runId }) => runs.logMetrics({ runId, points: Array.from({ length: 1_000_000 }, () => point('a')) }),
    code: Code.ResourceExhausted,
    reason: 'MESSAGE_TOO_LARGE',
  },
  {
    what: 'series thinned to one point',
    call: ({ runs, runId }) => collect(runs.readMetrics({ runIds: [runId], maxPoints: 1 })),
    ...INVALID,
    field: 'max_points',
  },
  {
    what: 'series of a range that ends before it begins',
    call: ({ runs, runId }) => collect(runs.readMetrics({ runIds: [runId], startMetricStep: 2n, endMetricStep: 1n })),
    ...INVALID,
    field: 'end_metric_step',
  },
  {
    what: 'series of a run twice',
    call: ({ runs, runId }) => collect(runs.readMetrics({ runIds: [runId, runId.toUpperCase()] })),
    ...INVALID,
    field: 'run_ids',
  },
  {
    what: 'series of 101 runs',
    call: ({ runs }) => collect(runs.readMetrics({ runIds: Array.from({ length: 101 }, () => crypto.randomUUID()) })),
    ...INVALID,
    field: 'run_ids',
  },
  {
    what: 'series of a stage and of the run alone',
    call: ({ runs, runId, evalId }) =>
      collect(runs.readMetrics({ runIds: [runId], stageId: evalId, runLevelOnly: true })),
    ...INVALID,
    field: 'run_level_only',
  },
  {
    what: 'watch of a run that is not there',
    call: ({ runs }) => collect(runs.watchRun({ runId: NOBODY })),
    code: Code.NotFound,
    reason: 'RUN_NOT_FOUND',
  },
];

const WRONG_PAGE = { code: Code.InvalidArgument, reason: 'INVALID_PAGE_TOKEN', field: 'page_token' } as const;
const firstOfRuns = async (runs: Runs, experimentId: string): Promise<string> => {
  const { nextPageToken } = await runs.listRuns({ experimentId, pageSize: 1 });
  expect(nextPageToken).not.toBe('');
  return nextPageToken;
};

const PAGES: readonly Bad[] = [
  {
    what: 'page of another list',
    call: async ({ runs, experimentId, runId }) =>
      runs.listStages({ runId, pageToken: await firstOfRuns(runs, experimentId) }),
    ...WRONG_PAGE,
  },
  {
    what: 'page of another filter',
    call: async ({ runs, experimentId }) =>
      runs.listRuns({ experimentId, rootsOnly: true, pageToken: await firstOfRuns(runs, experimentId) }),
    ...WRONG_PAGE,
  },
  {
    what: 'page of another view',
    call: async ({ runs, experimentId }) =>
      runs.listRuns({ experimentId, view: View.FULL, pageToken: await firstOfRuns(runs, experimentId) }),
    ...WRONG_PAGE,
  },
  {
    what: 'page of the history of another run',
    call: async ({ runs, branchId, runId }) => {
      const { nextPageToken } = await runs.listStatusChanges({ runId: branchId, pageSize: 1 });
      return runs.listStatusChanges({ runId, pageToken: nextPageToken });
    },
    ...WRONG_PAGE,
  },
  {
    what: 'page of no list',
    call: ({ runs, runId }) => runs.getRunTree({ runId, pageToken: 'nonsense' }),
    ...WRONG_PAGE,
  },
];

describe.each(ENGINES)('bad input to the books of runs, on %s', (engine) => {
  let server: TestServer;
  let scene: RunScene;
  let bystander: Bystander;
  let before: unknown;

  beforeAll(async () => {
    server = await startTestServer({ engine });
    // Node's own client would give up before it has sent what is far too large.
    const transport = createGrpcTransport({ baseUrl: server.url, nodeOptions: { maxSessionMemory: 1000 } });
    scene = await makeRunScene({
      trajectories: createClient(TrajectoryService, transport),
      states: createClient(StateService, transport),
      runs: createClient(RunService, transport),
    });
    bystander = await Bystander.open(scene);
    before = await picture();
  });
  afterAll(async () => {
    await bystander?.close();
    await server?.stop();
  });

  /** All that the scene's experiment holds. */
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
      await bystander.goesOn();
      await expectRefused(call(scene), wanted);
      await bystander.goesOn();
      expect(await picture(), 'nothing was changed').toEqual(before);
      expect(server.counts().sessions, 'all on one connection').toBe(1);
    },
  );

  it('M1, W11: metrics that are NaN or infinite are kept, in series and in maps', async () => {
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
});
