import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { type BadCall, INVALID } from './bad_call.ts';
import type { RunScene } from './rpcs/run_scene.ts';

type Bad = BadCall<RunScene>;

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
