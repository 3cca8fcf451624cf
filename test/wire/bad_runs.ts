import { type Client, Code } from '@connectrpc/connect';
import { expect } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import type { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { OnBranches } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { type BadCall, INVALID } from './bad_call.ts';
import type { RunScene } from './rpcs/run_scene.ts';
import { collect } from './story.ts';

type Bad = BadCall<RunScene>;
type Runs = Client<typeof RunService>;

const ILLEGAL = { code: Code.FailedPrecondition, reason: 'ILLEGAL_TRANSITION' } as const;

export const MOVES: readonly Bad[] = [
  {
    what: 'pause of a run that has not started',
    call: ({ runs, bareId }) => runs.pauseRun({ runId: bareId }),
    ...ILLEGAL,
    metadata: { status: 'PENDING', verb: 'pause' },
  },
  {
    what: 'run created with a terminal status',
    call: ({ runs }) => runs.createRun({ initialStatus: Status.COMPLETED }),
    ...INVALID,
    field: 'initial_status',
  },
  {
    what: 'stage created as PAUSED',
    call: ({ runs, runId }) =>
      runs.getOrCreateStage({ runId, kind: StageKind.EVAL, number: 7n, initialStatus: Status.PAUSED }),
    ...INVALID,
    field: 'initial_status',
  },
];

export const NAMES: readonly Bad[] = [
  {
    what: 'renaming to an empty name',
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
  { what: 'run without id and name', call: ({ runs }) => runs.getRun({}), ...INVALID, field: 'run_id' },
  {
    what: 'experiment of a run that is named by its id',
    call: ({ runs, runId, experimentName }) => runs.getRun({ runId, experimentName }),
    ...INVALID,
    field: 'experiment_name',
  },
];

export const PARENTS: readonly Bad[] = [
  { what: 'no branch point', call: ({ runs, runId }) => runs.branchRun({ runId }), ...INVALID, field: 'step_number' },
  {
    what: 'root that is not step 0',
    call: ({ runs }) => runs.createRun({ mainTrajectory: { root: { stepNumber: 1n } } }),
    ...INVALID,
    field: 'main_trajectory.root.step_number',
  },
  {
    what: 'deletion with KEEP_SHARED',
    call: ({ runs, runId }) => runs.deleteRun({ runId, onBranches: OnBranches.KEEP_SHARED }),
    ...INVALID,
    field: 'on_branches',
  },
];

const deep = `${'{"a":'.repeat(LIMITS.configDepth + 1)}1${'}'.repeat(LIMITS.configDepth + 1)}`;

export const VALUES: readonly Bad[] = [
  ...['[1]', '3', 'null', '"{}"', '{"a":1,}', '{', deep].map(
    (configJson): Bad => ({
      what: `config that is not a JSON object: ${configJson.slice(0, 20)}`,
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
  ...['', 'lr', '/a~2', '/a\0'].map(
    (path): Bad => ({
      what: `removed path that is not a JSON Pointer to a key: ${JSON.stringify(path)}`,
      call: ({ runs, experimentId }) => runs.createRun({ experimentId, removedConfigPaths: ['/seed', path] }),
      ...INVALID,
      field: 'removed_config_paths[1]',
    }),
  ),
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
    what: 'timing with an invalid time',
    call: ({ runs, evalId }) =>
      runs.updateStage({
        stageId: evalId,
        updateMask: { paths: ['timings'] },
        timings: { rollout: { endTime: { seconds: 1n << 40n } } },
      }),
    ...INVALID,
    field: 'timings["rollout"].end_time',
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
    what: 'history of two resources',
    call: ({ runs, runId, evalId }) => runs.listStatusChanges({ runId, stageId: evalId }),
    ...INVALID,
    field: 'run_id',
  },
  {
    what: 'comparison of a run with itself, with its id in upper case',
    call: ({ runs, runId }) => runs.compareRuns({ runIds: [runId, runId.toUpperCase()] }),
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

export const SERIES: readonly Bad[] = [
  {
    what: 'series of a range that ends before it starts',
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
    what: 'series of a stage and of the run itself',
    call: ({ runs, runId, evalId }) =>
      collect(runs.readMetrics({ runIds: [runId], stageId: evalId, runLevelOnly: true })),
    ...INVALID,
    field: 'run_level_only',
  },
];

const WRONG_PAGE = { code: Code.InvalidArgument, reason: 'INVALID_PAGE_TOKEN', field: 'page_token' } as const;
const firstOfRuns = async (runs: Runs, experimentId: string): Promise<string> => {
  const { nextPageToken } = await runs.listRuns({ experimentId, pageSize: 1 });
  expect(nextPageToken).not.toBe('');
  return nextPageToken;
};

export const PAGES: readonly Bad[] = [
  {
    what: 'page token of another list',
    call: async ({ runs, experimentId, runId }) =>
      runs.listStages({ runId, pageToken: await firstOfRuns(runs, experimentId) }),
    ...WRONG_PAGE,
  },
];
