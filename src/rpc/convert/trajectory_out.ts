import { create } from '@bufbuild/protobuf';
import {
  TagSchema,
  TrajectorySchema,
  type Tag as WireTag,
  type Trajectory as WireTrajectory,
} from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { getTag } from '../../app/trajectory/tags.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import { fromInstant, fromMap, fromStatus } from './values.ts';

/** BASIC leaves out what can be large (FM7). */
export function fromTrajectory(trajectory: Trajectory, view: 'BASIC' | 'FULL'): WireTrajectory {
  const wire = create(TrajectorySchema);
  wire.id = trajectory.id;
  wire.uid = trajectory.uid;
  wire.treeId = trajectory.treeId;
  if (trajectory.parent !== undefined) {
    wire.parentId = trajectory.parent.id;
    wire.branchPoint = trajectory.parent.branchPoint;
  }
  wire.name = trajectory.name;
  wire.taskId = trajectory.taskId;
  wire.runId = trajectory.runId;
  wire.experimentId = trajectory.experimentId;
  wire.labels = fromMap(trajectory.labels);
  if (view === 'FULL') wire.metadataJson = trajectory.metadataJson;
  wire.metrics = fromMap(trajectory.metrics);
  wire.status = fromStatus(trajectory.status);
  wire.statusMessage = trajectory.statusMessage;
  wire.writerId = trajectory.writerId;
  wire.writerEpoch = trajectory.writerEpoch;
  wire.nextStepNumber = trajectory.nextStepNumber;
  wire.rewardSum = trajectory.rewardSum;
  wire.createTime = fromInstant(trajectory.createTime);
  wire.updateTime = fromInstant(trajectory.updateTime);
  if (trajectory.sealTime !== undefined) wire.sealTime = fromInstant(trajectory.sealTime);
  return wire;
}

/** Of a deleted trajectory only its place in the tree is told. */
export function fromDeletedTrajectory(trajectory: Trajectory): WireTrajectory {
  const wire = create(TrajectorySchema);
  wire.id = trajectory.id;
  wire.treeId = trajectory.treeId;
  if (trajectory.parent !== undefined) {
    wire.parentId = trajectory.parent.id;
    wire.branchPoint = trajectory.parent.branchPoint;
  }
  wire.name = trajectory.name;
  wire.nextStepNumber = trajectory.nextStepNumber;
  return wire;
}

export function fromTag(tag: Awaited<ReturnType<typeof getTag>>): WireTag {
  const wire = create(TagSchema);
  wire.trajectoryId = tag.trajectoryId;
  wire.name = tag.name;
  wire.stepNumber = tag.stepNumber;
  wire.updateTime = fromInstant(tag.updateTime);
  return wire;
}
