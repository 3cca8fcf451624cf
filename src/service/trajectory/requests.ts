import {
  type ListStepsRequest,
  type ListTrajectoriesRequest,
  OnBranches,
  StepOrder,
  type UpdateTrajectoryRequest,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { PageArgs } from '../../app/page_token.ts';
import type { DeleteTrajectoryArgs } from '../../app/trajectory/delete.ts';
import type { ListTrajectoriesArgs } from '../../app/trajectory/list.ts';
import type { ListStepsArgs } from '../../app/trajectory/list_steps.ts';
import type { UpdateTrajectoryArgs } from '../../app/trajectory/update.ts';
import { invalidField } from '../../domain/errors.ts';
import { changesOf } from '../convert/mask.ts';
import { toInstant, toMap, toTrajectoryStatus, toView } from '../convert/values.ts';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

export function toTrajectoryFilter(request: ListTrajectoriesRequest): ListTrajectoriesArgs['filter'] {
  const filter: Mutable<ListTrajectoriesArgs['filter']> = {};
  if (request.branchPoint !== undefined && request.parentId === '') {
    throw invalidField('parent_id', 'must be set when branch_point is: a branch point is a step of a parent');
  }
  if (request.taskId !== '') filter.taskId = request.taskId;
  if (request.statuses.length > 0) {
    // A trajectory is never PENDING, INITIALIZING or PAUSED (L1): asking for these alone finds nothing.
    filter.statuses = request.statuses.map(toTrajectoryStatus).filter((status) => status !== undefined);
  }
  const labels = toMap(request.labels);
  if (labels.size > 0) filter.labels = labels;
  if (request.parentId !== '') filter.parentId = request.parentId;
  if (request.branchPoint !== undefined) filter.branchPoint = request.branchPoint;
  if (request.treeId !== '') filter.treeId = request.treeId;
  if (request.rootsOnly) filter.rootsOnly = true;
  if (request.name !== '') filter.name = request.name;
  if (request.withoutRun && request.runId !== '') {
    throw invalidField('without_run', 'must be false when run_id is set: a trajectory of that run belongs to a run');
  }
  if (request.withoutRun) filter.withoutRun = true;
  if (request.runId !== '') filter.runId = request.runId;
  if (request.experimentId !== '') filter.experimentId = request.experimentId;
  const from = toInstant(request.createTimeFrom);
  const to = toInstant(request.createTimeTo);
  if (from !== undefined) filter.createTimeFrom = from;
  if (to !== undefined) filter.createTimeTo = to;
  return filter;
}

export function toListStepsArgs(request: ListStepsRequest): Omit<ListStepsArgs, keyof PageArgs> {
  const filter: Mutable<ListStepsArgs['filter']> = {};
  if (request.terminalOnly) filter.terminalOnly = true;
  if (request.hasState !== '') filter.hasState = request.hasState;
  else if (request.hasAnyState) filter.hasState = true;
  if (request.minReward !== undefined) filter.minReward = toBound(request.minReward, 'min_reward');
  if (request.maxReward !== undefined) filter.maxReward = toBound(request.maxReward, 'max_reward');
  const from = toInstant(request.commitTimeFrom);
  const to = toInstant(request.commitTimeTo);
  if (from !== undefined) filter.commitTimeFrom = from;
  if (to !== undefined) filter.commitTimeTo = to;
  return {
    of: toStepsOf(request),
    filter,
    order: { by: toStepOrder(request.order), descending: request.descending },
    view: toView(request.view, 'BASIC'),
  };
}

/** Exactly one of them is set. */
function toStepsOf({ trajectoryId, taskId, runId, experimentId }: ListStepsRequest): ListStepsArgs['of'] {
  if (runId !== '') return { runId };
  if (experimentId !== '') return { experimentId };
  return taskId === '' ? { trajectoryId } : { taskId };
}

function toStepOrder(order: StepOrder): ListStepsArgs['order']['by'] {
  switch (order) {
    case StepOrder.REWARD:
      return 'REWARD';
    case StepOrder.TIME:
      return 'TIME';
    default:
      return 'NUMBER';
  }
}

function toBound(reward: number, field: string): number {
  if (Number.isNaN(reward)) throw invalidField(field, 'must be a number: nothing is below or above NaN');
  return reward;
}

export function toOnBranches(onBranches: OnBranches): DeleteTrajectoryArgs['onBranches'] {
  switch (onBranches) {
    case OnBranches.CASCADE:
      return 'CASCADE';
    case OnBranches.KEEP_SHARED:
      return 'KEEP_SHARED';
    default:
      return 'REFUSE';
  }
}

/** What the mask names. Errors: INVALID_REQUEST. */
export function toTrajectoryChanges(request: UpdateTrajectoryRequest): UpdateTrajectoryArgs['changes'] {
  return changesOf<UpdateTrajectoryArgs['changes']>(request.updateMask, {
    name: () => ({ name: request.name }),
    labels: () => ({ labels: toMap(request.labels) }),
    metadata_json: () => ({ metadataJson: request.metadataJson }),
    metrics: () => ({ metrics: toMap(request.metrics) }),
  });
}
