import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { TrajectoryService } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { appendStep } from '../../app/trajectory/append_step.ts';
import { attachState } from '../../app/trajectory/attach_state.ts';
import { branchTrajectory } from '../../app/trajectory/branch.ts';
import { compareTrajectories } from '../../app/trajectory/compare.ts';
import { createTrajectory } from '../../app/trajectory/create.ts';
import { deleteTrajectory } from '../../app/trajectory/delete.ts';
import { type Checkpoint, getCheckpoint } from '../../app/trajectory/get_checkpoint.ts';
import { getLineage } from '../../app/trajectory/get_lineage.ts';
import { getStep } from '../../app/trajectory/get_step.ts';
import { getTree } from '../../app/trajectory/get_tree.ts';
import { listTrajectories } from '../../app/trajectory/list.ts';
import { listSteps } from '../../app/trajectory/list_steps.ts';
import { sealTrajectory } from '../../app/trajectory/seal.ts';
import { findTrajectory } from '../../stream/find.ts';
import { placeOf, required } from '../convert/place.ts';
import { fromInstant, toMap, toView } from '../convert/values.ts';
import type { Methods } from '../method.ts';
import { idempotencyKeyOf } from '../request/digest.ts';
import { pageArgsOf } from '../request/page_args.ts';
import { fromComparison } from './comparison.ts';
import { fromDeletedTrajectory, fromTrajectory } from './messages.ts';
import { toListStepsArgs, toOnBranches, toTrajectoryChanges, toTrajectoryFilter } from './requests.ts';
import { toRoot, toSeal, toSingleStep } from './single_step.ts';
import { toOneState } from './step_in.ts';
import { fromStateRef, fromStoredStep } from './step_out.ts';

const rpc = TrajectoryService.method;

/** Methods of whole trajectories: create, branch, get, list, update, delete, lineage, tree, comparison. */
export const trajectoryMethods: Methods<
  typeof TrajectoryService,
  | 'createTrajectory'
  | 'branchTrajectory'
  | 'getTrajectory'
  | 'listTrajectories'
  | 'updateTrajectory'
  | 'deleteTrajectory'
  | 'getLineage'
  | 'getTree'
  | 'compareTrajectories'
> = {
  async createTrajectory(request, { app, caller }) {
    const { trajectoryId, name, taskId, runId, experimentId, metadataJson } = request;
    const key = idempotencyKeyOf(rpc.createTrajectory, request);
    const labels = toMap(request.labels);
    const root = toRoot(request.root, 'root');
    const args = { trajectoryId, key, name, taskId, runId, experimentId, labels, metadataJson, root };
    return { trajectory: fromTrajectory(await createTrajectory(app, caller, args), 'FULL') };
  },

  async branchTrajectory(request, { app, caller }) {
    const { trajectoryId, branchId, name, metadataJson } = request;
    const key = idempotencyKeyOf(rpc.branchTrajectory, request);
    const labels = toMap(request.labels);
    const args = { trajectoryId, branchId, key, name, labels, metadataJson, at: placeOf(request) };
    return { trajectory: fromTrajectory(await branchTrajectory(app, caller, args), 'FULL') };
  },

  async getTrajectory({ trajectoryId, view }, { app, caller }) {
    const found = await findTrajectory(app, caller, trajectoryId);
    return { trajectory: fromTrajectory(found, toView(view, 'FULL')) };
  },

  async listTrajectories(request, { app, caller }) {
    const view = toView(request.view, 'BASIC');
    const pageArgs = pageArgsOf(caller, rpc.listTrajectories, request);
    const page = await listTrajectories(app, caller, { filter: toTrajectoryFilter(request), view, ...pageArgs });
    return { trajectories: page.items.map((item) => fromTrajectory(item, view)), nextPageToken: page.nextPageToken };
  },

  /** Labels are replaced, metrics merged by key (FM7). */
  async updateTrajectory(request, { app, caller }) {
    const changes = toTrajectoryChanges(request);
    const now = await app.store.updateTrajectory(caller.namespace, request.trajectoryId, changes);
    return { trajectory: fromTrajectory(now, 'FULL') };
  },

  async deleteTrajectory({ trajectoryId, onBranches }, { app, caller }) {
    const args = { trajectoryId, onBranches: toOnBranches(onBranches) };
    const { purged, keptShared } = await deleteTrajectory(app, caller, args);
    return { purgedTrajectories: purged, keptShared };
  },

  async getLineage(request, { app, caller }) {
    const { trajectoryId } = request;
    const page = await getLineage(app, caller, { trajectoryId, ...pageArgsOf(caller, rpc.getLineage, request) });
    return { segments: [...page.items], nextPageToken: page.nextPageToken };
  },

  async getTree(request, { app, caller }) {
    const { trajectoryId } = request;
    // A token is of the tree, whichever of its trajectories is named.
    const pageArgs = pageArgsOf(caller, rpc.getTree, { ...request, trajectoryId: '' });
    const page = await getTree(app, caller, { trajectoryId, ...pageArgs });
    const nodes = page.items.map((item) => ({
      trajectory: item.hidden ? fromDeletedTrajectory(item) : fromTrajectory(item, 'BASIC'),
      deleted: item.hidden,
    }));
    return { nodes, nextPageToken: page.nextPageToken };
  },

  async compareTrajectories(request, { app, caller }) {
    const { trajectoryId, otherTrajectoryId, startStepNumber, endStepNumber } = request;
    const args = { trajectoryId, otherTrajectoryId, startStepNumber, endStepNumber };
    return fromComparison(await compareTrajectories(app, caller, args));
  },
};

/** Methods of single steps: writes without a stream (W8), and reads. */
export const stepMethods: Methods<
  typeof TrajectoryService,
  'appendStep' | 'sealTrajectory' | 'attachState' | 'getStep' | 'listSteps' | 'getCheckpoint'
> = {
  async appendStep(request, { app, caller }) {
    const step = toSingleStep(required(request.step, 'step'), 'step');
    const { nextStepNumber, commitTime, duplicate } = await appendStep(app, caller, { ...fenceOf(request), step });
    return { nextStepNumber, commitTime: fromInstant(commitTime), duplicate };
  },

  async sealTrajectory(request, { app, caller }) {
    const seal = toSeal(required(request.seal, 'seal'), 'seal');
    const sealed = await sealTrajectory(app, caller, { ...fenceOf(request), seal });
    return { trajectory: fromTrajectory(sealed, 'FULL') };
  },

  async attachState(request, { app, caller }) {
    const stepNumber = required(request.stepNumber, 'step_number');
    const given = toOneState(required(request.state, 'state'), 'state');
    const attached = await attachState(app, caller, { ...fenceOf(request), stepNumber, state: given });
    return { state: fromStateRef(attached.state), duplicate: attached.duplicate };
  },

  async getStep(request, { app, caller }) {
    const { trajectoryId } = request;
    const args = { trajectoryId, at: placeOf(request), view: toView(request.view, 'FULL') };
    const { owner, step } = await getStep(app, caller, args);
    return { trajectoryId: owner.id, step: fromStoredStep(step) };
  },

  async listSteps(request, { app, caller }) {
    const pageArgs = pageArgsOf(caller, rpc.listSteps, request);
    const page = await listSteps(app, caller, { ...toListStepsArgs(request), ...pageArgs });
    const steps = page.items.map(({ owner, step }) => ({ trajectoryId: owner.id, step: fromStoredStep(step) }));
    return { steps, nextPageToken: page.nextPageToken };
  },

  async getCheckpoint(request, { app, caller }) {
    const { trajectoryId, stepNumber, tag, atOrBefore, stateNames } = request;
    const latest = atOrBefore === undefined ? undefined : { atOrBefore };
    const at = stepNumber !== undefined ? { stepNumber } : tag !== undefined ? { tag } : latest;
    const found = await getCheckpoint(app, caller, { trajectoryId, at, stateNames });
    return { trajectoryId: found.owner.id, step: withInlineStates(found) };
  },
};

/** Returns the trajectory and the writer that a unary write names (W8). */
function fenceOf(request: {
  readonly trajectoryId: string;
  readonly uid: string;
  readonly writerEpoch?: bigint | undefined;
}) {
  const { trajectoryId, uid, writerEpoch } = request;
  return { trajectoryId, uid: uid || undefined, writerEpoch };
}

/** Returns the step with the bytes of its states, as many as fit (RD3). */
function withInlineStates({ step, inline }: Checkpoint): Step {
  const wire = fromStoredStep(step);
  for (const state of wire.states) {
    const data = inline.get(state.name);
    if (data !== undefined) state.data = data;
  }
  return wire;
}
