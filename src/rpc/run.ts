import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import {
  BranchRunResponseSchema,
  CancelRunResponseSchema,
  CompareRunsResponseSchema,
  CompleteRunResponseSchema,
  CreateRunResponseSchema,
  DeleteRunResponseSchema,
  FailRunResponseSchema,
  GetProgressResponseSchema,
  GetRunResponseSchema,
  GetRunTreeResponseSchema,
  HeartbeatRunResponseSchema,
  IfExists,
  ListRunsResponseSchema,
  ListStatusChangesResponseSchema,
  type NewMainTrajectory,
  PauseRunResponseSchema,
  ReopenRunResponseSchema,
  ResumeRunResponseSchema,
  RunService,
  StartRunResponseSchema,
  UpdateRunResponseSchema,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { PAGE_BYTES } from '../app/page.ts';
import { branchRun } from '../app/run/branch.ts';
import { cancelRollouts } from '../app/run/cancel_rollouts.ts';
import { compareRuns, type RunComparison } from '../app/run/compare.ts';
import { type CreatedRun, createRun, type MainTrajectoryArgs } from '../app/run/create.ts';
import { deleteRun } from '../app/run/delete.ts';
import { getRun } from '../app/run/get.ts';
import { getRunTree } from '../app/run/get_tree.ts';
import { listRuns } from '../app/run/list.ts';
import { heartbeatRun, moveRun } from '../app/run/move.ts';
import { getProgress } from '../app/run/progress.ts';
import { runBytes } from '../app/run/row_bytes.ts';
import { listStatusChanges } from '../app/run/status_changes.ts';
import { updateRun } from '../app/run/update.ts';
import { trajectoryBytes } from '../app/trajectory/page.ts';
import { invalidField } from '../domain/errors.ts';
import type { Verb } from '../domain/lifecycle.ts';
import { placeOf } from '../service/convert/place.ts';
import { fromInstant, fromStatus, toBranchPolicy, toView } from '../service/convert/values.ts';
import type { Call } from '../service/method.ts';
import { idempotencyKeyOf } from '../service/request/digest.ts';
import { pageArgsOf } from '../service/request/page_args.ts';
import { stageBytes, stageMessage } from '../service/stage/stage.ts';
import { unary, type Wire } from './call.ts';
import { fromComparison } from './convert/comparison.ts';
import { toRunChanges, toRunFilter, toRunMaking } from './convert/run_in.ts';
import { fromProgress, fromRun, fromStatusChange } from './convert/run_out.ts';
import { fromTrajectory } from './convert/trajectory_out.ts';
import { toSingleStep } from './frame.ts';

const rpc = RunService.method;
type Service = ServiceImpl<typeof RunService>;

/** Make, get, list, change, delete. */
export function wholeRuns(
  wire: Wire,
): Pick<Service, 'createRun' | 'branchRun' | 'getRun' | 'listRuns' | 'updateRun' | 'deleteRun'> {
  return {
    createRun: unary(wire, rpc.createRun, 'write', async (request, { app, caller }) => {
      const { runId, experimentId, experimentName, mainTrajectory } = request;
      const made = await createRun(app, caller, {
        ...toRunMaking(request, request.configJson, 'PENDING'),
        key: idempotencyKeyOf(rpc.createRun, request),
        runId,
        experimentId,
        experimentName,
        ifExists: request.ifExists === IfExists.RETURN_EXISTING ? 'RETURN_EXISTING' : 'FAIL',
        mainTrajectory: mainTrajectory && toMainTrajectory(mainTrajectory),
      });
      return create(CreateRunResponseSchema, { ...fromMade(made), created: made.created });
    }),

    branchRun: unary(wire, rpc.branchRun, 'write', async (request, { app, caller }) => {
      const { runId, branchId, branchTrajectoryId } = request;
      const making = toRunMaking(request, request.configOverridesJson, 'RUNNING');
      const key = idempotencyKeyOf(rpc.branchRun, request);
      const args = { ...making, key, runId, at: placeOf(request), branchId, branchTrajectoryId };
      const { run, mainTrajectory } = fromMade({ ...(await branchRun(app, caller, args)), resumeStage: undefined });
      return create(BranchRunResponseSchema, { run, mainTrajectory });
    }),

    getRun: unary(wire, rpc.getRun, 'read', async ({ runId, runName = '', experimentName, view }, { app, caller }) => {
      if (runId !== undefined && experimentName !== '') {
        throw invalidField('experiment_name', 'must be empty when run_id is set: it goes with run_name');
      }
      const found = await getRun(app, caller, runId === undefined ? { runName, experimentName } : { runId });
      return create(GetRunResponseSchema, { run: fromRun(found, toView(view, 'FULL')) });
    }),

    listRuns: unary(wire, rpc.listRuns, 'read', async (request, { app, caller }) => {
      const { experimentId, experimentName } = request;
      const view = toView(request.view, 'BASIC');
      const filter = toRunFilter(request);
      const page = await listRuns(app, caller, {
        experimentId,
        experimentName,
        filter,
        view,
        ...pageArgsOf(caller, rpc.listRuns, request),
      });
      const runs = page.items.map(({ run, progress }) => ({
        run: fromRun(run, view),
        progress: fromProgress(progress),
      }));
      return create(ListRunsResponseSchema, { runs, nextPageToken: page.nextPageToken });
    }),

    updateRun: unary(wire, rpc.updateRun, 'write', async (request, { app, caller }) => {
      const now = await updateRun(app, caller, { runId: request.runId, changes: toRunChanges(request) });
      return create(UpdateRunResponseSchema, { run: fromRun(now, 'FULL') });
    }),

    deleteRun: unary(wire, rpc.deleteRun, 'write', async ({ runId, onBranches, cancelLive }, { app, caller }) => {
      const args = { runId, onBranches: toBranchPolicy(onBranches), cancelLive };
      const { runs, trajectories } = await deleteRun(app, caller, args);
      return create(DeleteRunResponseSchema, { deletedRuns: runs, deletedTrajectories: trajectories });
    }),
  };
}

/** Where a run is: its verbs, its heartbeat, its progress, its history. */
export function lives(
  wire: Wire,
): Pick<
  Service,
  | 'startRun'
  | 'pauseRun'
  | 'resumeRun'
  | 'completeRun'
  | 'failRun'
  | 'cancelRun'
  | 'reopenRun'
  | 'heartbeatRun'
  | 'getProgress'
  | 'listStatusChanges'
> {
  const move = async ({ app, caller }: Call, verb: Verb, request: RunVerbRequest) => {
    const { runId, message, metadataJson, phase, resultJson = '' } = request;
    const { keepTrajectoryOpen = false, cancelRollouts = false } = request;
    const said = { message, metadataJson, phase, resultJson };
    const run = await moveRun(app, caller, { runId, verb, said, keepTrajectoryOpen, cancelRollouts });
    return { run: fromRun(run, 'FULL') };
  };
  return {
    startRun: unary(wire, rpc.startRun, 'write', async (request, call) =>
      create(StartRunResponseSchema, await move(call, 'start', request)),
    ),
    pauseRun: unary(wire, rpc.pauseRun, 'write', async (request, call) =>
      create(PauseRunResponseSchema, await move(call, 'pause', request)),
    ),
    resumeRun: unary(wire, rpc.resumeRun, 'write', async (request, call) =>
      create(ResumeRunResponseSchema, await move(call, 'resume', request)),
    ),
    completeRun: unary(wire, rpc.completeRun, 'write', async (request, call) =>
      create(CompleteRunResponseSchema, await move(call, 'complete', request)),
    ),
    failRun: unary(wire, rpc.failRun, 'write', async (request, call) =>
      create(FailRunResponseSchema, await move(call, 'fail', request)),
    ),
    cancelRun: unary(wire, rpc.cancelRun, 'write', async (request, call) => {
      const moved = await move(call, 'cancel', request);
      const cancelled = request.cancelRollouts ? await cancelRollouts(call.app, call.caller, request) : 0n;
      return create(CancelRunResponseSchema, { ...moved, cancelledRollouts: cancelled });
    }),
    reopenRun: unary(wire, rpc.reopenRun, 'write', async (request, call) => {
      const { run } = await move(call, 'reopen', request);
      return create(ReopenRunResponseSchema, { run, mainTrajectoryId: run.mainTrajectoryId });
    }),

    heartbeatRun: unary(wire, rpc.heartbeatRun, 'write', async ({ runId }, { app, caller }) => {
      const { status, statusMessage, heartbeatTime } = await heartbeatRun(app, caller, { runId });
      return create(HeartbeatRunResponseSchema, {
        status: fromStatus(status),
        statusMessage,
        heartbeatTime: fromInstant(heartbeatTime),
      });
    }),

    getProgress: unary(wire, rpc.getProgress, 'read', async ({ runId }, { app, caller }) => {
      return create(GetProgressResponseSchema, { progress: fromProgress(await getProgress(app, caller, { runId })) });
    }),

    listStatusChanges: unary(wire, rpc.listStatusChanges, 'read', async (request, { app, caller }) => {
      const { ascending } = request;
      const page = await listStatusChanges(app, caller, {
        of: ownerOf(request),
        ascending,
        ...pageArgsOf(caller, rpc.listStatusChanges, request),
      });
      return create(ListStatusChangesResponseSchema, {
        changes: page.items.map(fromStatusChange),
        nextPageToken: page.nextPageToken,
      });
    }),
  };
}

/** How runs hang together. */
export function families(wire: Wire): Pick<Service, 'getRunTree' | 'compareRuns'> {
  return {
    getRunTree: unary(wire, rpc.getRunTree, 'read', async (request, { app, caller }) => {
      const { runId, experimentId } = request;
      const of = experimentId === '' ? { runId } : { experimentId };
      const page = await getRunTree(app, caller, { ...of, ...pageArgsOf(caller, rpc.getRunTree, request) });
      const runs = page.items.map((run) => fromRun(run, 'BASIC'));
      return create(GetRunTreeResponseSchema, { runs, nextPageToken: page.nextPageToken });
    }),

    compareRuns: unary(wire, rpc.compareRuns, 'read', async (request, { app, caller }) => {
      const { runIds, startStepNumber, endStepNumber } = request;
      const { removedConfigPaths, comparisons } = await compareRuns(app, caller, {
        runIds,
        startStepNumber,
        endStepNumber,
      });
      return create(CompareRunsResponseSchema, {
        comparisons: comparisons.map(fromRunComparison),
        removedConfigPaths: [...removedConfigPaths],
      });
    }),
  };
}

interface RunVerbRequest {
  readonly runId: string;
  readonly message: string;
  readonly metadataJson: string;
  readonly phase?: string | undefined;
  readonly resultJson?: string;
  readonly keepTrajectoryOpen?: boolean;
  readonly cancelRollouts?: boolean;
}

function toMainTrajectory({ trajectoryId, taskId, root }: NewMainTrajectory): MainTrajectoryArgs {
  return { trajectoryId, taskId, root: root && toSingleStep(root, 'main_trajectory.root') };
}

/** The run whole, unless the answer would be too large with what comes beside it (RD3). */
function fromMade({ run, mainTrajectory, resumeStage }: Omit<CreatedRun, 'created'>) {
  const beside =
    (mainTrajectory === undefined ? 0 : trajectoryBytes(mainTrajectory, 'BASIC')) +
    (resumeStage === undefined ? 0 : stageBytes(stageMessage(resumeStage, 'BASIC')));
  const view = runBytes(run, 'FULL') + beside > PAGE_BYTES ? 'BASIC' : 'FULL';
  return {
    run: fromRun(run, view),
    ...(mainTrajectory === undefined ? {} : { mainTrajectory: fromTrajectory(mainTrajectory, 'BASIC') }),
    ...(resumeStage === undefined ? {} : { resumeStage: stageMessage(resumeStage, 'BASIC') }),
  };
}

/** Exactly one of them is set. */
function ownerOf({
  runId,
  stageId,
  trajectoryId,
  rolloutId,
  environmentId,
}: {
  readonly runId?: string | undefined;
  readonly stageId?: string | undefined;
  readonly trajectoryId?: string | undefined;
  readonly rolloutId?: string | undefined;
  readonly environmentId?: string | undefined;
}) {
  if (runId !== undefined) return { noun: 'RUN', id: runId } as const;
  if (stageId !== undefined) return { noun: 'STAGE', id: stageId } as const;
  if (rolloutId !== undefined) return { noun: 'ROLLOUT', id: rolloutId } as const;
  if (environmentId !== undefined) return { noun: 'ENVIRONMENT', id: environmentId } as const;
  return { noun: 'TRAJECTORY', id: trajectoryId ?? '' } as const;
}

function fromRunComparison(comparison: RunComparison) {
  const { runId, removedConfigPaths, pathsTruncated, configDifferences, truncated, trajectories } = comparison;
  return {
    runId,
    removedConfigPaths: [...removedConfigPaths],
    removedConfigPathsTruncated: pathsTruncated,
    configDifferences: [...configDifferences],
    configDifferencesTruncated: truncated,
    ...(trajectories === undefined ? {} : { trajectories: fromComparison(trajectories) }),
  };
}
