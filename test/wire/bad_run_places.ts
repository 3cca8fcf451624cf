import { Code } from '@connectrpc/connect';
import { expect } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { OnBranches } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type BadCall, INVALID } from './bad_call.ts';
import type { RunScene } from './rpcs/run_scene.ts';

type Bad = BadCall<RunScene>;

const ILLEGAL = { code: Code.FailedPrecondition, reason: 'ILLEGAL_TRANSITION' } as const;
const TAKEN = { code: Code.AlreadyExists, reason: 'RUN_EXISTS' } as const;

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
    what: 'name of another run, and of a state, too',
    call: ({ runs, experimentId }) =>
      runs.createRun({
        experimentId,
        name: 'main',
        mainTrajectory: { root: { states: [{ name: 'main', data: new Uint8Array([1]) }] } },
      }),
    ...TAKEN,
    field: 'name',
    text: 'main',
  },
  {
    what: 'renaming to the name of another run',
    call: ({ runs, runId }) => runs.updateRun({ runId, updateMask: { paths: ['name'] }, name: 'bare' }),
    ...TAKEN,
    field: 'name',
  },
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
    what: 'run that exists with another config',
    call: ({ runs, experimentId }) =>
      runs.createRun({
        experimentId,
        name: 'main',
        ifExists: IfExists.RETURN_EXISTING,
        configJson: '{"seed":3}',
        removedConfigPaths: ['/lr'],
        plan: { concurrency: 1 },
      }),
    code: Code.FailedPrecondition,
    reason: 'CONFIG_MISMATCH',
    metadata: { fields: expect.stringMatching(/^config_json\/seed,removed_config_paths,plan\./) },
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
  {
    what: 'run that would be its own parent',
    call: ({ runs, runId }) => runs.branchRun({ runId, stepNumber: 0n, branchId: runId }),
    ...TAKEN,
    field: 'branch_id',
  },
  {
    what: 'trajectory that would be its own parent',
    call: ({ runs, runId, mainId }) => runs.branchRun({ runId, stepNumber: 0n, branchTrajectoryId: mainId }),
    code: Code.AlreadyExists,
    reason: 'TRAJECTORY_EXISTS',
    field: 'branch_trajectory_id',
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
    field: 'points[0].stage_id',
    text: 'has no stage',
  },
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
