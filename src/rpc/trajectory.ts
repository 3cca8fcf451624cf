import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import type { Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  AppendStepResponseSchema,
  AttachStateResponseSchema,
  BranchTrajectoryResponseSchema,
  CreateTrajectoryResponseSchema,
  DeleteTagResponseSchema,
  DeleteTrajectoryResponseSchema,
  GetCheckpointResponseSchema,
  GetLineageResponseSchema,
  GetStepResponseSchema,
  GetTagResponseSchema,
  GetTrajectoryResponseSchema,
  GetTreeResponseSchema,
  ListStepsResponseSchema,
  ListTagsResponseSchema,
  ListTrajectoriesResponseSchema,
  SealTrajectoryResponseSchema,
  SetTagResponseSchema,
  TrajectoryService,
  UpdateTrajectoryResponseSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { appendStep } from '../app/trajectory/append_step.ts';
import { attachState } from '../app/trajectory/attach_state.ts';
import { branchTrajectory } from '../app/trajectory/branch.ts';
import { compareTrajectories } from '../app/trajectory/compare.ts';
import { createTrajectory } from '../app/trajectory/create.ts';
import { deleteTrajectory } from '../app/trajectory/delete.ts';
import { getTrajectory } from '../app/trajectory/get.ts';
import { type Checkpoint, getCheckpoint } from '../app/trajectory/get_checkpoint.ts';
import { getLineage } from '../app/trajectory/get_lineage.ts';
import { getStep } from '../app/trajectory/get_step.ts';
import { getTree } from '../app/trajectory/get_tree.ts';
import { listTrajectories } from '../app/trajectory/list.ts';
import { listSteps } from '../app/trajectory/list_steps.ts';
import { sealTrajectory } from '../app/trajectory/seal.ts';
import { deleteTag, getTag, listTags, setTag } from '../app/trajectory/tags.ts';
import { updateTrajectory } from '../app/trajectory/update.ts';
import { placeOf, required } from '../service/convert/place.ts';
import { fromInstant, toMap, toView } from '../service/convert/values.ts';
import { idempotencyKeyOf } from '../service/request/digest.ts';
import { pageArgsOf } from '../service/request/page_args.ts';
import { fromComparison } from '../service/trajectory/comparison.ts';
import { fromDeletedTrajectory, fromTag, fromTrajectory } from '../service/trajectory/messages.ts';
import {
  toListStepsArgs,
  toOnBranches,
  toTrajectoryChanges,
  toTrajectoryFilter,
} from '../service/trajectory/requests.ts';
import { toSeal, toSingleStep } from '../service/trajectory/single_step.ts';
import { toIncomingState } from '../service/trajectory/step_in.ts';
import { fromStateRef, fromStoredStep } from '../service/trajectory/step_out.ts';
import { appendSteps } from './append.ts';
import { unary, type Wire } from './call.ts';
import { readSteps } from './read.ts';

const rpc = TrajectoryService.method;
type Service = ServiceImpl<typeof TrajectoryService>;

export function trajectoryService(wire: Wire): Service {
  return {
    ...wholeTrajectories(wire),
    ...writing(wire),
    ...reading(wire),
    ...kinship(wire),
    ...tags(wire),
    appendSteps: appendSteps(wire),
    readSteps: readSteps(wire),
  };
}

/** Make, get, list, change, delete. */
function wholeTrajectories(
  wire: Wire,
): Pick<
  Service,
  | 'createTrajectory'
  | 'branchTrajectory'
  | 'getTrajectory'
  | 'listTrajectories'
  | 'updateTrajectory'
  | 'deleteTrajectory'
> {
  return {
    createTrajectory: unary(wire, rpc.createTrajectory, 'write', async (request, { app, caller }) => {
      const key = idempotencyKeyOf(rpc.createTrajectory, request);
      const { trajectoryId, name, taskId, runId, experimentId, metadataJson } = request;
      const labels = toMap(request.labels);
      const root = request.root === undefined ? undefined : toSingleStep(request.root, 'root');
      const args = { trajectoryId, key, name, taskId, runId, experimentId, labels, metadataJson, root };
      const made = await createTrajectory(app, caller, args);
      return create(CreateTrajectoryResponseSchema, { trajectory: fromTrajectory(made, 'FULL') });
    }),

    branchTrajectory: unary(wire, rpc.branchTrajectory, 'write', async (request, { app, caller }) => {
      const key = idempotencyKeyOf(rpc.branchTrajectory, request);
      const { trajectoryId, branchId, name, metadataJson } = request;
      const labels = toMap(request.labels);
      const args = { trajectoryId, branchId, key, name, labels, metadataJson, at: placeOf(request) };
      const made = await branchTrajectory(app, caller, args);
      return create(BranchTrajectoryResponseSchema, { trajectory: fromTrajectory(made, 'FULL') });
    }),

    getTrajectory: unary(wire, rpc.getTrajectory, 'read', async ({ trajectoryId, view }, { app, caller }) => {
      const found = await getTrajectory(app, caller, { trajectoryId });
      return create(GetTrajectoryResponseSchema, { trajectory: fromTrajectory(found, toView(view, 'FULL')) });
    }),

    listTrajectories: unary(wire, rpc.listTrajectories, 'read', async (request, { app, caller }) => {
      const view = toView(request.view, 'BASIC');
      const args = { filter: toTrajectoryFilter(request), view, ...pageArgsOf(caller, rpc.listTrajectories, request) };
      const page = await listTrajectories(app, caller, args);
      return create(ListTrajectoriesResponseSchema, {
        trajectories: page.items.map((item) => fromTrajectory(item, view)),
        nextPageToken: page.nextPageToken,
      });
    }),

    updateTrajectory: unary(wire, rpc.updateTrajectory, 'write', async (request, { app, caller }) => {
      const { trajectoryId } = request;
      const now = await updateTrajectory(app, caller, { trajectoryId, changes: toTrajectoryChanges(request) });
      return create(UpdateTrajectoryResponseSchema, { trajectory: fromTrajectory(now, 'FULL') });
    }),

    deleteTrajectory: unary(
      wire,
      rpc.deleteTrajectory,
      'write',
      async ({ trajectoryId, onBranches }, { app, caller }) => {
        const deletion = await deleteTrajectory(app, caller, { trajectoryId, onBranches: toOnBranches(onBranches) });
        const { purged, keptShared } = deletion;
        return create(DeleteTrajectoryResponseSchema, { purgedTrajectories: purged, keptShared });
      },
    ),
  };
}

/** Writing without a stream (W8). */
function writing(wire: Wire): Pick<Service, 'appendStep' | 'sealTrajectory' | 'attachState'> {
  return {
    appendStep: unary(wire, rpc.appendStep, 'write', async (request, { app, caller }) => {
      const step = toSingleStep(required(request.step, 'step'), 'step');
      const appended = await appendStep(app, caller, { ...fenceOf(request), step });
      return create(AppendStepResponseSchema, {
        nextStepNumber: appended.nextStepNumber,
        commitTime: fromInstant(appended.commitTime),
        duplicate: appended.duplicate,
      });
    }),

    sealTrajectory: unary(wire, rpc.sealTrajectory, 'write', async (request, { app, caller }) => {
      const seal = toSeal(required(request.seal, 'seal'), 'seal');
      const sealed = await sealTrajectory(app, caller, { ...fenceOf(request), seal });
      return create(SealTrajectoryResponseSchema, { trajectory: fromTrajectory(sealed, 'FULL') });
    }),

    attachState: unary(wire, rpc.attachState, 'write', async (request, { app, caller }) => {
      const stepNumber = required(request.stepNumber, 'step_number');
      const state = toIncomingState(required(request.state, 'state'), 'state');
      const attached = await attachState(app, caller, { ...fenceOf(request), stepNumber, state });
      return create(AttachStateResponseSchema, {
        state: fromStateRef(attached.state),
        duplicate: attached.duplicate,
      });
    }),
  };
}

function reading(wire: Wire): Pick<Service, 'getStep' | 'listSteps' | 'getCheckpoint'> {
  return {
    getStep: unary(wire, rpc.getStep, 'read', async (request, { app, caller }) => {
      const { trajectoryId } = request;
      const args = { trajectoryId, at: placeOf(request), view: toView(request.view, 'FULL') };
      const { owner, step } = await getStep(app, caller, args);
      return create(GetStepResponseSchema, { trajectoryId: owner.id, step: fromStoredStep(step) });
    }),

    listSteps: unary(wire, rpc.listSteps, 'read', async (request, { app, caller }) => {
      const page = await listSteps(app, caller, {
        ...toListStepsArgs(request),
        ...pageArgsOf(caller, rpc.listSteps, request),
      });
      return create(ListStepsResponseSchema, {
        steps: page.items.map(({ owner, step }) => ({ trajectoryId: owner.id, step: fromStoredStep(step) })),
        nextPageToken: page.nextPageToken,
      });
    }),

    getCheckpoint: unary(wire, rpc.getCheckpoint, 'read', async (request, { app, caller }) => {
      const { trajectoryId, stepNumber, tag, atOrBefore, stateNames } = request;
      const latest = atOrBefore === undefined ? undefined : { atOrBefore };
      const at = stepNumber !== undefined ? { stepNumber } : tag !== undefined ? { tag } : latest;
      const found = await getCheckpoint(app, caller, { trajectoryId, at, stateNames });
      return create(GetCheckpointResponseSchema, { trajectoryId: found.owner.id, step: withInlineStates(found) });
    }),
  };
}

/** How trajectories hang together. */
function kinship(wire: Wire): Pick<Service, 'getLineage' | 'getTree' | 'compareTrajectories'> {
  return {
    getLineage: unary(wire, rpc.getLineage, 'read', async (request, { app, caller }) => {
      const { trajectoryId } = request;
      const page = await getLineage(app, caller, { trajectoryId, ...pageArgsOf(caller, rpc.getLineage, request) });
      return create(GetLineageResponseSchema, { segments: [...page.items], nextPageToken: page.nextPageToken });
    }),

    getTree: unary(wire, rpc.getTree, 'read', async (request, { app, caller }) => {
      const { trajectoryId } = request;
      // A token is of the tree, whichever of its trajectories is named.
      const pageArgs = pageArgsOf(caller, rpc.getTree, { ...request, trajectoryId: '' });
      const page = await getTree(app, caller, { trajectoryId, ...pageArgs });
      return create(GetTreeResponseSchema, {
        nodes: page.items.map((item) => ({
          trajectory: item.hidden ? fromDeletedTrajectory(item) : fromTrajectory(item, 'BASIC'),
          deleted: item.hidden,
        })),
        nextPageToken: page.nextPageToken,
      });
    }),

    compareTrajectories: unary(wire, rpc.compareTrajectories, 'read', async (request, { app, caller }) => {
      const { trajectoryId, otherTrajectoryId, startStepNumber, endStepNumber } = request;
      const args = { trajectoryId, otherTrajectoryId, startStepNumber, endStepNumber };
      const comparison = await compareTrajectories(app, caller, args);
      return fromComparison(comparison);
    }),
  };
}

function tags(wire: Wire): Pick<Service, 'setTag' | 'getTag' | 'listTags' | 'deleteTag'> {
  return {
    setTag: unary(wire, rpc.setTag, 'write', async (request, { app, caller }) => {
      const { trajectoryId, name, expectedStepNumber } = request;
      const stepNumber = required(request.stepNumber, 'step_number');
      const tag = await setTag(app, caller, { trajectoryId, name, stepNumber, expectedStepNumber });
      return create(SetTagResponseSchema, { tag: fromTag(tag) });
    }),

    getTag: unary(wire, rpc.getTag, 'read', async ({ trajectoryId, name }, { app, caller }) => {
      return create(GetTagResponseSchema, { tag: fromTag(await getTag(app, caller, { trajectoryId, name })) });
    }),

    listTags: unary(wire, rpc.listTags, 'read', async (request, { app, caller }) => {
      const { trajectoryId } = request;
      const page = await listTags(app, caller, { trajectoryId, ...pageArgsOf(caller, rpc.listTags, request) });
      return create(ListTagsResponseSchema, { tags: page.items.map(fromTag), nextPageToken: page.nextPageToken });
    }),

    deleteTag: unary(wire, rpc.deleteTag, 'write', async ({ trajectoryId, name }, { app, caller }) => {
      await deleteTag(app, caller, { trajectoryId, name });
      return create(DeleteTagResponseSchema);
    }),
  };
}

/** The row and the writer that a unary write means (W8). */
function fenceOf(request: {
  readonly trajectoryId: string;
  readonly uid: string;
  readonly writerEpoch?: bigint | undefined;
}) {
  const { trajectoryId, uid, writerEpoch } = request;
  return { trajectoryId, uid: uid === '' ? undefined : uid, writerEpoch };
}

/** RD3: the step with the bytes of its states, as far as they fit. */
function withInlineStates({ step, inline }: Checkpoint): Step {
  const wire = fromStoredStep(step);
  for (const state of wire.states) {
    const data = inline.get(state.name);
    if (data !== undefined) state.data = data;
  }
  return wire;
}
