import {
  type ListTrajectoriesRequest,
  OnBranches,
  type ReadTrajectoriesRequest,
  type UpdateTrajectoryRequest,
  UpdateTrajectoryRequestSchema,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import type {
  OnBranches as StoreOnBranches,
  TrajectoryChanges,
  TrajectoryFilter,
} from '../../store/contract/trajectory.ts';
import { maskedFields } from '../convert/mask.ts';
import { setFilters, toBound, toInstant, toMap, toTrajectoryStatus } from '../convert/values.ts';

export function toTrajectoryFilter(request: ListTrajectoriesRequest): TrajectoryFilter {
  const { branchPoint, parentId, runId, withoutRun, treeId, rootsOnly, name, text } = request;
  if (branchPoint !== undefined && parentId === '') {
    throw invalidField('parent_id', 'must be set when branch_point is: a branch point is a step of a parent');
  }
  if (withoutRun && runId !== '') {
    throw invalidField('without_run', 'must be false when run_id is set: it selects trajectories without a run');
  }
  return {
    ...commonFilter(request),
    ...setFilters({ parentId, branchPoint, treeId, rootsOnly, name, text, withoutRun }),
  };
}

/** Errors: INVALID_REQUEST for a bound that is NaN. */
export function toReadFilter(request: ReadTrajectoriesRequest): TrajectoryFilter {
  const { trajectoryIds: ids, name, minLength, maxLength, minRewardSum, maxRewardSum } = request;
  const stepLabels = toMap(request.stepLabels);
  const shard = request.shard && { index: request.shard.index, count: request.shard.count };
  const bounds = {
    minLength,
    maxLength,
    minRewardSum: toBound(minRewardSum, 'min_reward_sum'),
    maxRewardSum: toBound(maxRewardSum, 'max_reward_sum'),
  };
  return { ...commonFilter(request), ...setFilters({ ids, name, stepLabels, shard, ...bounds }) };
}

type CommonFilters = 'taskId' | 'labels' | 'runId' | 'experimentId' | 'createTimeFrom' | 'createTimeTo' | 'statuses';

function commonFilter(request: Pick<ReadTrajectoriesRequest, CommonFilters>): TrajectoryFilter {
  const { taskId, runId, experimentId } = request;
  const filter = setFilters({
    taskId,
    labels: toMap(request.labels),
    runId,
    experimentId,
    createTimeFrom: toInstant(request.createTimeFrom),
    createTimeTo: toInstant(request.createTimeTo),
  });
  if (request.statuses.length === 0) return filter;
  // A trajectory is never PENDING, INITIALIZING or PAUSED (L1), so a filter by these alone selects nothing.
  const statuses = request.statuses.map(toTrajectoryStatus).filter((status) => status !== undefined);
  return { ...filter, statuses };
}

export function toOnBranches(onBranches: OnBranches): StoreOnBranches {
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
  return maskedFields(UpdateTrajectoryRequestSchema, request, { labels: toMap, metrics: toMap });
}
