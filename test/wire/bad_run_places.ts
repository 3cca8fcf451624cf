import { Code } from '@connectrpc/connect';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { OnBranches } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type BadCall, INVALID } from './bad_call.ts';
import type { RunScene } from './rpcs/run_scene.ts';

type Bad = BadCall<RunScene>;

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
