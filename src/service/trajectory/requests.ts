import {
  type ListTrajectoriesRequest,
  OnBranches,
  type UpdateTrajectoryRequest,
  UpdateTrajectoryRequestSchema,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import type {
  OnBranches as StoreOnBranches,
  TrajectoryChanges,
  TrajectoryFilter,
} from '../../store/contract/trajectory.ts';
import { setFilters } from '../convert/filter.ts';
import { maskedFields } from '../convert/mask.ts';
import { toInstant, toMap, toTrajectoryStatus } from '../convert/values.ts';

export function toTrajectoryFilter(request: ListTrajectoriesRequest): TrajectoryFilter {
  const { branchPoint, parentId, runId, withoutRun, taskId, treeId, rootsOnly, name, experimentId } = request;
  if (branchPoint !== undefined && parentId === '') {
    throw invalidField('parent_id', 'must be set when branch_point is: a branch point is a step of a parent');
  }
  if (withoutRun && runId !== '') {
    throw invalidField('without_run', 'must be false when run_id is set: it selects trajectories without a run');
  }
  const filter = setFilters({
    taskId,
    labels: toMap(request.labels),
    parentId,
    branchPoint,
    treeId,
    rootsOnly,
    name,
    withoutRun,
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
