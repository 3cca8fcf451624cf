import { randomUUID } from 'node:crypto';
import { Code, ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { OnBranches } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { BadRequestSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { type AnabranchClient, connectClient, errorMetadata, reasonOf } from '../../src/client/index.ts';
import type { Reason } from '../../src/domain/errors.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { collect } from './story.ts';

/**
 * The scene of each case: a PENDING run of an experiment of its own, with a main trajectory of one step, and a stage.
 */
interface Scene extends Pick<AnabranchClient, 'runs' | 'trajectories'> {
  readonly experimentId: string;
  readonly runId: string;
  readonly name: string;
  readonly mainId: string;
  readonly stageId: string;
}

interface Case {
  readonly what: string;
  readonly call: (scene: Scene) => Promise<unknown>;
  readonly code: Code;
  readonly reason: Reason;
  readonly field?: string;
  /** Text of the message, beside the field. */
  readonly says?: RegExp;
  readonly metadata?: Record<string, string>;
}

const NOBODY = '00000000-0000-4000-8000-000000000000';
const TEN_KB = 'k'.repeat(10_240);
const INVALID = { code: Code.InvalidArgument, reason: 'INVALID_REQUEST' } as const;
const many = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, i) => [`label-${i}`, 'x']));
const nested = (depth: number) => `${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`;

function invalid(what: string, field: string, call: Case['call'], says?: RegExp): Case {
  return { what, call, ...INVALID, field, ...(says && { says }) };
}

const MOVES: readonly Case[] = [
  {
    what: 'a verb that the status does not allow',
    call: ({ runs, runId }) => runs.pauseRun({ runId }),
    code: Code.FailedPrecondition,
    reason: 'ILLEGAL_TRANSITION',
    says: /PauseRun requires a run that is RUNNING; this one is PENDING/,
    metadata: { status: 'PENDING', verb: 'pause' },
  },
  {
    what: 'a verb of a stage that its status does not allow',
    call: ({ runs, stageId }) => runs.reopenStage({ stageId }),
    code: Code.FailedPrecondition,
    reason: 'ILLEGAL_TRANSITION',
    metadata: { status: 'PENDING', verb: 'reopen' },
  },
  {
    what: 'an end with another result',
    call: async ({ runs, runId }) => {
      await runs.cancelRun({ runId, message: 'enough' });
      await runs.cancelRun({ runId, message: 'too much' });
    },
    code: Code.AlreadyExists,
    reason: 'RESULT_CONFLICT',
    metadata: { status: 'CANCELLED', verb: 'cancel' },
  },
  invalid('a run that begins COMPLETED', 'initial_status', ({ runs }) =>
    runs.createRun({ initialStatus: Status.COMPLETED }),
  ),
  invalid('a status that nobody knows', 'initial_status', ({ runs }) =>
    runs.createRun({ initialStatus: 99 as Status }),
  ),
  invalid('a result that is no JSON', 'result_json', ({ runs, runId }) =>
    runs.completeRun({ runId, resultJson: '{result}' }),
  ),
  invalid('a message of 5 KiB', 'message', ({ runs, runId }) => runs.startRun({ runId, message: 'm'.repeat(5000) })),
];

const NAMES: readonly Case[] = [
  {
    what: 'the name of another run',
    call: ({ runs, experimentId, name }) => runs.createRun({ experimentId, name }),
    code: Code.AlreadyExists,
    reason: 'RUN_EXISTS',
  },
  {
    what: 'the name of another run, by an update',
    call: async ({ runs, experimentId, name }) => {
      const { run } = await runs.createRun({ experimentId });
      await runs.updateRun({ runId: run!.id, updateMask: { paths: ['name'] }, name });
    },
    code: Code.AlreadyExists,
    reason: 'RUN_EXISTS',
  },
  {
    what: 'the name of another experiment',
    call: async ({ runs }) => {
      const name = randomUUID();
      await runs.createExperiment({ name });
      await runs.createExperiment({ name });
    },
    code: Code.AlreadyExists,
    reason: 'EXPERIMENT_EXISTS',
  },
  invalid('no name', 'name', ({ runs, runId }) => runs.updateRun({ runId, updateMask: { paths: ['name'] } })),
  invalid('a name of 10 KB', 'name', ({ runs }) => runs.createRun({ name: TEN_KB })),
  invalid('a name with U+0000', 'name', ({ runs }) => runs.createRun({ name: 'a\0b' })),
  invalid('a run to return that is not named', 'name', ({ runs }) =>
    runs.createRun({ ifExists: IfExists.RETURN_EXISTING }),
  ),
  {
    what: 'RETURN_EXISTING with another config',
    call: ({ runs, experimentId, name }) =>
      runs.createRun({
        experimentId,
        name,
        ifExists: IfExists.RETURN_EXISTING,
        configJson: '{"optimizer":{"lr":0.2}}',
        plan: { concurrency: 3 },
      }),
    code: Code.FailedPrecondition,
    reason: 'CONFIG_MISMATCH',
    metadata: { fields: 'config_json/optimizer/lr,plan' },
  },
];

const PARENTS: readonly Case[] = [
  {
    what: 'a parent that does not exist',
    call: ({ runs }) => runs.branchRun({ runId: NOBODY, stepNumber: 0n }),
    code: Code.NotFound,
    reason: 'RUN_NOT_FOUND',
    metadata: { run: NOBODY },
  },
  {
    what: 'a parent without a main trajectory',
    call: async ({ runs, experimentId }) => {
      const { run } = await runs.createRun({ experimentId });
      await runs.branchRun({ runId: run!.id, stepNumber: 0n });
    },
    code: Code.FailedPrecondition,
    reason: 'NO_MAIN_TRAJECTORY',
  },
  {
    what: 'a step that is not on the path of the parent',
    call: ({ runs, runId }) => runs.branchRun({ runId, stepNumber: 1n }),
    code: Code.OutOfRange,
    reason: 'BRANCH_POINT_BEYOND_END',
    metadata: { next_step_number: '1' },
  },
  invalid('no step', 'step_number', ({ runs, runId }) => runs.branchRun({ runId }), /step_number|tag/),
  {
    what: 'a cycle: a run branched from itself',
    call: ({ runs, runId }) => runs.branchRun({ runId, branchId: runId, stepNumber: 0n }),
    code: Code.AlreadyExists,
    reason: 'RUN_EXISTS',
  },
  {
    what: 'a cycle: the main trajectory of the parent',
    call: ({ runs, runId, mainId }) => runs.branchRun({ runId, branchTrajectoryId: mainId, stepNumber: 0n }),
    code: Code.AlreadyExists,
    reason: 'TRAJECTORY_EXISTS',
  },
  {
    what: 'a stage of another run',
    call: async ({ runs, stageId }) => {
      const { run } = await runs.createRun({});
      await runs.logMetrics({ runId: run!.id, points: [{ key: 'loss', value: 1, stageId }] });
    },
    code: Code.NotFound,
    reason: 'STAGE_NOT_FOUND',
  },
  {
    what: 'an experiment that does not exist',
    call: ({ runs }) => runs.createRun({ experimentName: 'nowhere' }),
    code: Code.NotFound,
    reason: 'EXPERIMENT_NOT_FOUND',
    metadata: { experiment: 'nowhere' },
  },
  invalid('an experiment by id and by name', 'experiment_name', ({ runs, experimentId }) =>
    runs.createRun({ experimentId, experimentName: 'default' }),
  ),
  invalid('a trajectory of a run and of another experiment', 'experiment_id', async ({ runs, trajectories, runId }) => {
    const { experiment } = await runs.createExperiment({ name: randomUUID() });
    await trajectories.createTrajectory({ runId, experimentId: experiment!.id });
  }),
];

const LIMITED: readonly Case[] = [
  invalid('65 labels', 'labels', ({ runs }) => runs.createRun({ labels: many(65) }), /64/),
  invalid(
    'a label’s key of 65 bytes',
    'labels',
    ({ runs }) => runs.createRun({ labels: { ['k'.repeat(65)]: '' } }),
    /64/,
  ),
  invalid('a label’s key of 10 KB', 'labels', ({ runs }) => runs.createRun({ labels: { [TEN_KB]: '' } }), /64/),
  invalid(
    'a label’s value of 257 bytes',
    'labels',
    ({ runs }) => runs.createRun({ labels: { a: 'v'.repeat(257) } }),
    /256/,
  ),
  invalid('a label with U+0000', 'labels', ({ runs }) => runs.createRun({ labels: { a: '\0' } })),
  ...['[1]', '1', 'null', '"{}"', '{', '{"a":NaN}', nested(101)].map((json) =>
    invalid(`overrides that are no JSON object: ${json.slice(0, 20)}`, 'config_overrides_json', ({ runs, runId }) =>
      runs.branchRun({ runId, stepNumber: 0n, configOverridesJson: json }),
    ),
  ),
  invalid('a config that is no JSON object', 'config_json', ({ runs }) => runs.createRun({ configJson: '[]' })),
  invalid('a config of 129 KiB', 'config_json', ({ runs }) =>
    runs.createRun({ configJson: JSON.stringify({ a: 'x'.repeat(129 * 1024) }) }),
  ),
  invalid('a default config that is no JSON object', 'default_config_json', ({ runs }) =>
    runs.createExperiment({ name: randomUUID(), defaultConfigJson: 'true' }),
  ),
  invalid('a plan that names a kind twice', 'plan.stage_plans', ({ runs }) =>
    runs.createRun({ plan: { stagePlans: [{ kind: StageKind.EVAL }, { kind: StageKind.EVAL }] } }),
  ),
  invalid('a plan of no kind', 'plan.stage_plans[0].kind', ({ runs }) =>
    runs.createRun({ plan: { stagePlans: [{}] } }),
  ),
  invalid('a heartbeat timeout of nothing', 'heartbeat_timeout', ({ runs }) =>
    runs.createRun({ heartbeatTimeout: { seconds: 0n, nanos: 5 } }),
  ),
  invalid('a stage without a number', 'number', ({ runs, runId }) =>
    runs.getOrCreateStage({ runId, kind: StageKind.EVAL }),
  ),
  invalid('a stage of a negative number', 'number', ({ runs, runId }) =>
    runs.getOrCreateStage({ runId, kind: StageKind.EVAL, number: -1n }),
  ),
  invalid('more substeps than can be', 'completed_substeps', ({ runs, stageId }) => {
    const updateMask = { paths: ['completed_substeps'] };
    return runs.updateStage({ stageId, updateMask, completedSubsteps: 2n ** 63n - 1n });
  }),
  invalid('a mask of nothing', 'update_mask', ({ runs, runId }) => runs.updateRun({ runId, updateMask: {} })),
  invalid(
    'a mask that names a field that cannot be changed',
    'update_mask',
    ({ runs, runId }) => runs.updateRun({ runId, updateMask: { paths: ['phase', 'config_json'] }, phase: 'x' }),
    /config_json/,
  ),
  invalid('runs to compare that are one', 'run_ids', ({ runs, runId }) => runs.compareRuns({ runIds: [runId] })),
  invalid('a run to compare with itself', 'run_ids', ({ runs, runId }) => runs.compareRuns({ runIds: [runId, runId] })),
  invalid(
    'rewards of 1,001 steps of each run',
    'end_step_number',
    async ({ runs, runId, experimentId }) => {
      const { run } = await runs.createRun({ experimentId });
      await runs.compareRuns({ runIds: [runId, run!.id], startStepNumber: 5n, endStepNumber: 1006n });
    },
    /1,?000/,
  ),
  invalid('keeping what a deleted run shares', 'on_branches', ({ runs, runId }) =>
    runs.deleteRun({ runId, onBranches: OnBranches.KEEP_SHARED }),
  ),
];

const METRICS: readonly Case[] = [
  invalid('a series whose name has 10 KB', 'points[1].key', ({ runs, runId }) =>
    runs.logMetrics({ runId, points: [{ key: 'a' }, { key: TEN_KB }] }),
  ),
  invalid('a series without a name', 'points[0].key', ({ runs, runId }) => runs.logMetrics({ runId, points: [{}] })),
  invalid('a series whose name has U+0000', 'points[0].key', ({ runs, runId }) =>
    runs.logMetrics({ runId, points: [{ key: '\0' }] }),
  ),
  invalid('a metric of a run whose key has 10 KB', 'metrics', ({ runs, runId }) =>
    runs.updateRun({ runId, updateMask: { paths: ['metrics'] }, metrics: { [TEN_KB]: 1 } }),
  ),
  invalid('no points', 'points', ({ runs, runId }) => runs.logMetrics({ runId })),
  invalid(
    '10,001 points',
    'points',
    ({ runs, runId }) => runs.logMetrics({ runId, points: Array(10_001).fill({ key: 'a' }) }),
    /10,?000/,
  ),
  {
    what: 'a quarter of a million points',
    call: ({ runs, runId }) => runs.logMetrics({ runId, points: Array(250_000).fill({ key: 'a' }) }),
    code: Code.ResourceExhausted,
    reason: 'MESSAGE_TOO_LARGE',
    says: /1 MiB|1048576|1,048,576/,
  },
  {
    what: 'metrics of a run that does not exist',
    call: ({ runs }) => collect(runs.readMetrics({ runIds: [NOBODY] })),
    code: Code.NotFound,
    reason: 'RUN_NOT_FOUND',
  },
  invalid('series down to three points', 'max_points', ({ runs, runId }) =>
    collect(runs.readMetrics({ runIds: [runId], maxPoints: 3 })),
  ),
  invalid('metrics of one run twice', 'run_ids', ({ runs, runId }) =>
    collect(runs.readMetrics({ runIds: [runId, runId] })),
  ),
];

describe.each(ENGINES)('bad input for runs, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let scene: Scene;
  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });
  beforeEach(async () => {
    const { runs, trajectories } = client;
    const { experiment } = await runs.createExperiment({ name: randomUUID() });
    const experimentId = experiment!.id;
    const name = 'scene';
    const configJson = '{"optimizer":{"lr":0.1}}';
    const mainTrajectory = { root: { reward: 1 } };
    const made = await runs.createRun({ experimentId, name, configJson, mainTrajectory });
    const runId = made.run!.id;
    const { stage } = await runs.getOrCreateStage({ runId, kind: StageKind.TRAIN_STEP, number: 0n });
    scene = { runs, trajectories, experimentId, runId, name, mainId: made.mainTrajectory!.id, stageId: stage!.id };
  });

  it.each([...MOVES, ...NAMES, ...PARENTS, ...LIMITED, ...METRICS])(
    '$what is refused: $reason',
    async ({ call, code, reason, field, says, metadata }) => {
      const error = ConnectError.from(
        await call(scene).then(
          () => undefined,
          (thrown: unknown) => thrown,
        ),
      );
      expect(`${Code[error.code]} ${reasonOf(error)}`, error.message).toBe(`${Code[code]} ${reason}`);
      if (says !== undefined) expect(error.rawMessage).toMatch(says);
      if (metadata !== undefined) expect(errorMetadata(error)).toMatchObject(metadata);
      if (field === undefined) return;
      const fields = error.findDetails(BadRequestSchema).flatMap(({ fieldViolations }) => fieldViolations);
      expect(fields.map((violation) => violation.field).join(' ')).toContain(field);
      expect(error.rawMessage).toContain(field);
      // A refusal passes through proxies that limit headers.
      expect(error.rawMessage.length).toBeLessThan(4000);
    },
  );

  it('M1: NaN and infinities are stored, as points and as metrics', async () => {
    const { runs, runId, stageId } = scene;
    const values = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, -0, 5e-324];
    const points = values.map((value, i) => ({ key: 'loss', metricStep: BigInt(i), value }));
    await runs.logMetrics({ runId, points });
    const series = (await collect(runs.readMetrics({ runIds: [runId] }))).flatMap((message) => message.series);
    expect(series).toMatchObject([{ key: 'loss', values, pointCount: 5n, nanCount: 1n }]);
    expect(Object.is(series[0]?.values[3], -0)).toBe(true);
    const metrics = Object.fromEntries(values.map((value, i) => [`m${i}`, value]));
    const updateMask = { paths: ['metrics'] };
    expect((await runs.updateRun({ runId, updateMask, metrics })).run!.metrics).toEqual(metrics);
    expect((await runs.updateStage({ stageId, updateMask, metrics })).stage!.metrics).toEqual(metrics);
  });

  it('M1: a series from the smallest to the largest step number is read, complete and downsampled to four points', async () => {
    const { runs, runId } = scene;
    const metricSteps = [-(2n ** 63n), -1n, 0n, 1n, 2n ** 63n - 1n];
    const points = metricSteps.map((metricStep, i) => ({ key: 'loss', metricStep, value: i }));
    await runs.logMetrics({ runId, points });
    const read = async (maxPoints: number) =>
      (await collect(runs.readMetrics({ runIds: [runId], maxPoints }))).flatMap((message) => message.series);
    expect(await read(0)).toMatchObject([{ metricSteps, values: [0, 1, 2, 3, 4], pointCount: 5n }]);
    expect(await read(4)).toMatchObject([
      { metricSteps: [metricSteps[0], metricSteps[4]], values: [0, 4], pointCount: 5n, nanCount: 0n },
    ]);
  });

  it('M2: the maximal number of substeps, in many stages, is summed without overflow', async () => {
    const { runs, runId } = scene;
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
    const { runs: listed } = await runs.listRuns({ name: scene.name, experimentId: scene.experimentId });
    expect(listed[0]?.progress).toEqual(progress);
  });

  it('M2: a plan whose product exceeds the range of a field still has a progress', async () => {
    const { runs, runId } = scene;
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
