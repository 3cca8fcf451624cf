import { create } from '@bufbuild/protobuf';
import {
  TagSchema,
  TrajectorySchema,
  type Tag as WireTag,
  type Trajectory as WireTrajectory,
} from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { type TreeNode, TreeNodeSchema } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Gain } from '../../domain/gain.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { View } from '../../store/contract/request.ts';
import type { Tag } from '../../store/contract/trajectory.ts';
import { messageOf } from '../answer/message.ts';
import { fromInstant, fromMap, fromStatus } from '../convert/values.ts';

/** BASIC omits `metadata_json`, which can be large (FM7). */
export function fromTrajectory(trajectory: Trajectory, view: View): WireTrajectory {
  // A literal: `create` is slower for objects with many fields (see `fromRun`).
  const wire: WireTrajectory = {
    $typeName: 'anabranch.v1.Trajectory',
    id: trajectory.id,
    uid: trajectory.uid,
    treeId: trajectory.treeId,
    parentId: trajectory.parent?.id ?? '',
    name: trajectory.name,
    taskId: trajectory.taskId,
    runId: trajectory.runId,
    experimentId: trajectory.experimentId,
    labels: fromMap(trajectory.labels),
    metadataJson: view === 'FULL' ? trajectory.metadataJson : '',
    metrics: fromMap(trajectory.metrics),
    scoredMetrics: [...trajectory.scoredMetrics],
    status: fromStatus(trajectory.status),
    statusMessage: trajectory.statusMessage,
    writerId: trajectory.writerId,
    writerEpoch: trajectory.writerEpoch,
    nextStepNumber: trajectory.nextStepNumber,
    rewardSum: trajectory.rewardSum,
    branchRewardSum: trajectory.branchRewardSum ?? 0,
    createTime: fromInstant(trajectory.createTime),
    updateTime: fromInstant(trajectory.updateTime),
  };
  if (trajectory.parent !== undefined) wire.branchPoint = trajectory.parent.branchPoint;
  if (trajectory.sealTime !== undefined) wire.sealTime = fromInstant(trajectory.sealTime);
  return wire;
}

/** Returns a row of a tree. A deleted trajectory has only its position. */
export function treeNode(row: Trajectory, gain: Gain | undefined, tags: readonly Tag[] = []): TreeNode {
  const trajectory = row.hidden ? fromDeletedTrajectory(row) : fromTrajectory(row, 'BASIC');
  return create(TreeNodeSchema, { trajectory, deleted: row.hidden, ...gain, tags: tags.map(fromTag) });
}

export function fromTag({ trajectoryId, name, stepNumber, updateTime }: Tag): WireTag {
  return messageOf(TagSchema, { trajectoryId, name, stepNumber, updateTime: fromInstant(updateTime) });
}

function fromDeletedTrajectory({ id, treeId, name, parent, nextStepNumber }: Trajectory): WireTrajectory {
  const { id: parentId = '', branchPoint } = parent ?? {};
  return create(TrajectorySchema, { id, treeId, name, parentId, branchPoint, nextStepNumber });
}
