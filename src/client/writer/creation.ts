import { clone, create, type MessageInitShape } from '@bufbuild/protobuf';
import {
  type TrajectoryCreation,
  TrajectoryCreationSchema,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';

/** Returns a copy, with the id of the trajectory and a request id where they are unset. */
export function creationOf(
  init: MessageInitShape<typeof TrajectoryCreationSchema>,
  trajectoryId: string,
): TrajectoryCreation {
  const creation = clone(TrajectoryCreationSchema, create(TrajectoryCreationSchema, init));
  const { trajectory, branch } = creation;
  if (trajectory !== undefined) trajectory.trajectoryId ||= trajectoryId;
  if (branch !== undefined) branch.branchId ||= trajectoryId;
  for (const request of [trajectory, branch]) if (request !== undefined) request.requestId ||= crypto.randomUUID();
  return creation;
}
