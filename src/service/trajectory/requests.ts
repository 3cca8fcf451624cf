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
import { invalidField } from '../../domain/errors.ts';
import type { TrajectoryChanges } from '../../store/contract/trajectory.ts';
import { setFilters } from '../convert/filter.ts';
import { maskedFields } from '../convert/mask.ts';
import { toInstant, toMap, toTrajectoryStatus, toView } from '../convert/values.ts';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

export function toTrajectoryFilter(request: ListTrajectoriesRequest): ListTrajectoriesArgs['filter'] {
  const { branchPoint, parentId, runId, withoutRun, taskId, treeId, rootsOnly, name, experimentId } = request;
  if (branchPoint !== undefined && parentId === '') {
    throw invalidField('parent_id', 'must be set when branch_point is: a branch point is a step of a parent');
  }
  if (withoutRun && runId !== '') {
    throw invalidField('without_run', 'must be false when run_id is set: a trajectory of that run belongs to a run');
  }
  const createTimeFrom = toInstant(request.createTimeFrom);
  const createTimeTo = toInstant(request.createTimeTo);
  const times = { createTimeFrom, createTimeTo };
  const labels = toMap(request.labels);
  const filter = setFilters({
    taskId,
    labels,
    parentId,
    branchPoint,
    treeId,
    rootsOnly,
    name,
    withoutRun,
    runId,
    experimentId,
    ...times,
  });
  if (request.statuses.length === 0) return filter;
  // A trajectory is never PENDING, INITIALIZING or PAUSED (L1): asking for these alone finds nothing.
  const statuses = request.statuses.map(toTrajectoryStatus).filter((status) => status !== undefined);
  return { ...filter, statuses };
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

export function toTrajectoryChanges(request: UpdateTrajectoryRequest): TrajectoryChanges {
  const { updateMask, name, metadataJson } = request;
  const maps = { labels: toMap(request.labels), metrics: toMap(request.metrics) };
  return maskedFields(updateMask, { name, labels: maps.labels, metadataJson, metrics: maps.metrics });
}
