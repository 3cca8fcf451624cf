import { IfExists, type NewMainTrajectory, RunService } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { PAGE_BYTES } from '../../app/page.ts';
import { branchRun } from '../../app/run/branch.ts';
import { compareRuns, type RunComparison } from '../../app/run/compare.ts';
import { type CreatedRun, createRun, type MainTrajectoryArgs } from '../../app/run/create.ts';
import { deleteRun } from '../../app/run/delete.ts';
import { requireNewName, requirePlan } from '../../app/run/fields.ts';
import { getRunTree } from '../../app/run/get_tree.ts';
import { listRuns } from '../../app/run/list.ts';
import { runBytes } from '../../app/run/row_bytes.ts';
import { trajectoryBytes } from '../../app/trajectory/page.ts';
import { invalidField, runNotFound } from '../../domain/errors.ts';
import { DEFAULT_EXPERIMENT } from '../../domain/run.ts';
import { placeOf } from '../convert/place.ts';
import { toBranchPolicy, toView } from '../convert/values.ts';
import type { Methods } from '../method.ts';
import { idempotencyKeyOf } from '../request/digest.ts';
import { pageArgsOf } from '../request/page_args.ts';
import { stageBytes, stageMessage } from '../stage/stage.ts';
import { fromComparison } from '../trajectory/comparison.ts';
import { fromTrajectory } from '../trajectory/messages.ts';
import { toRoot } from '../trajectory/single_step.ts';
import { fromProgress, fromRun } from './messages.ts';
import { toRunChanges, toRunFilter, toRunMaking } from './requests.ts';

const rpc = RunService.method;

export const runMethods: Methods<
  typeof RunService,
  'createRun' | 'branchRun' | 'getRun' | 'listRuns' | 'updateRun' | 'deleteRun' | 'getRunTree' | 'compareRuns'
> = {
  async createRun(request, { app, caller }) {
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
    return { ...fromMade(made), created: made.created };
  },

  async branchRun(request, { app, caller }) {
    const { runId, branchId, branchTrajectoryId } = request;
    const making = toRunMaking(request, request.configOverridesJson, 'RUNNING');
    const key = idempotencyKeyOf(rpc.branchRun, request);
    const args = { ...making, key, runId, at: placeOf(request), branchId, branchTrajectoryId };
    return fromMade({ ...(await branchRun(app, caller, args)), resumeStage: undefined });
  },

  async getRun({ runId, runName: name = '', experimentName, view }, { app, caller }) {
    if (runId !== undefined && experimentName !== '') {
      throw invalidField('experiment_name', 'must be empty when run_id is set: it goes with run_name');
    }
    const place = runId === undefined ? { name, experimentName: experimentName || DEFAULT_EXPERIMENT } : { id: runId };
    const found = await app.store.getRun(caller.namespace, place);
    if (found === undefined) throw runNotFound(runId ?? name);
    return { run: fromRun(found, toView(view, 'FULL')) };
  },

  async listRuns(request, { app, caller }) {
    const { experimentId, experimentName } = request;
    const view = toView(request.view, 'BASIC');
    const args = { experimentId, experimentName, filter: toRunFilter(request), view };
    const page = await listRuns(app, caller, { ...args, ...pageArgsOf(caller, rpc.listRuns, request) });
    const runs = page.items.map(({ run, progress }) => ({ run: fromRun(run, view), progress: fromProgress(progress) }));
    return { runs, nextPageToken: page.nextPageToken };
  },

  /** Labels are replaced, metrics merged by key (FM7). */
  async updateRun(request, { app, caller }) {
    const changes = toRunChanges(request);
    if (changes.name !== undefined) requireNewName(changes.name);
    requirePlan(changes.plan);
    return { run: fromRun(await app.store.updateRun(caller.namespace, request.runId, changes), 'FULL') };
  },

  async deleteRun({ runId, onBranches, cancelLive }, { app, caller }) {
    const args = { runId, onBranches: toBranchPolicy(onBranches), cancelLive };
    const { runs, trajectories } = await deleteRun(app, caller, args);
    return { deletedRuns: runs, deletedTrajectories: trajectories };
  },

  async getRunTree(request, { app, caller }) {
    const { runId, experimentId } = request;
    const of = experimentId === '' ? { runId } : { experimentId };
    const page = await getRunTree(app, caller, { ...of, ...pageArgsOf(caller, rpc.getRunTree, request) });
    return { runs: page.items.map((run) => fromRun(run, 'BASIC')), nextPageToken: page.nextPageToken };
  },

  async compareRuns({ runIds, startStepNumber, endStepNumber }, { app, caller }) {
    const found = await compareRuns(app, caller, { runIds, startStepNumber, endStepNumber });
    return {
      comparisons: found.comparisons.map(fromRunComparison),
      removedConfigPaths: [...found.removedConfigPaths],
    };
  },
};

function toMainTrajectory({ trajectoryId, taskId, root }: NewMainTrajectory): MainTrajectoryArgs {
  return { trajectoryId, taskId, root: toRoot(root, 'main_trajectory.root') };
}

/** The run whole, unless the answer would be too large with what comes beside it (RD3). */
function fromMade({ run, mainTrajectory, resumeStage: stage }: Omit<CreatedRun, 'created'>) {
  const resumeStage = stage && stageMessage(stage, 'BASIC');
  const beside =
    (mainTrajectory === undefined ? 0 : trajectoryBytes(mainTrajectory, 'BASIC')) +
    (resumeStage === undefined ? 0 : stageBytes(resumeStage));
  const view = runBytes(run, 'FULL') + beside > PAGE_BYTES ? 'BASIC' : 'FULL';
  return {
    run: fromRun(run, view),
    mainTrajectory: mainTrajectory && fromTrajectory(mainTrajectory, 'BASIC'),
    resumeStage,
  };
}

function fromRunComparison(comparison: RunComparison) {
  const { runId, removedConfigPaths, pathsTruncated, configDifferences, truncated, trajectories } = comparison;
  return {
    runId,
    removedConfigPaths: [...removedConfigPaths],
    removedConfigPathsTruncated: pathsTruncated,
    configDifferences: [...configDifferences],
    configDifferencesTruncated: truncated,
    trajectories: trajectories && fromComparison(trajectories),
  };
}
