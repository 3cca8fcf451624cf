import { IfExists } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type AppendOpen,
  type BranchTrajectoryRequest,
  type CreateTrajectoryRequest,
  TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import type { IdempotencyKey } from '../../store/contract/request.ts';
import type {
  NewBranch,
  NewTrajectory,
  NewTrajectoryFields,
  TrajectoryCreation,
} from '../../store/contract/trajectory.ts';
import type { App } from '../../stream/app.ts';
import { required, toMap, toStepReference } from '../convert/values.ts';
import { createDigestOf, idempotencyKeyOf } from '../request/digest.ts';
import { toRoot } from './single_step.ts';

const rpc = TrajectoryService.method;

/** Converts a checked request of CreateTrajectory. `path` leads to the request, for errors. Errors: INVALID_REQUEST. */
export function toNewTrajectory(app: App, request: CreateTrajectoryRequest, path = ''): NewTrajectory {
  const { trajectoryId, taskId, runId, experimentId } = request;
  if (request.ifExists === IfExists.RETURN_EXISTING && trajectoryId === '') {
    throw invalidField('trajectory_id', 'must be set when if_exists is RETURN_EXISTING, which finds it by its id');
  }
  return {
    ...commonFields(app, request, trajectoryId),
    createDigest: createDigestOf(rpc.createTrajectory, request),
    taskId,
    runId: runId || undefined,
    experimentId: experimentId || undefined,
    ...toRoot(request.root, `${path}root`),
    returnExisting: request.ifExists === IfExists.RETURN_EXISTING,
  };
}

/** Converts a checked request of BranchTrajectory. Errors: INVALID_REQUEST. */
export function toNewBranch(app: App, request: BranchTrajectoryRequest, path = ''): NewBranch {
  return {
    ...commonFields(app, request, request.branchId),
    createDigest: createDigestOf(rpc.branchTrajectory, request),
    sourceId: request.trajectoryId,
    taskId: request.taskId || undefined,
    at: toStepReference(request, path),
  };
}

/**
 * Converts `create` of a checked message that opens a trajectory (W1). `path` leads to that message, for errors.
 * Errors: INVALID_REQUEST, DIGEST_MISMATCH.
 */
export function toCreation(
  app: App,
  { trajectoryId, uid, create }: Pick<AppendOpen, 'trajectoryId' | 'uid' | 'create'>,
  path: string,
): TrajectoryCreation | undefined {
  if (create === undefined) return undefined;
  if (uid !== '') throw invalidField(`${path}uid`, 'must be empty with create: only a trajectory that exists has one');
  const { trajectory, branch } = create;
  if (trajectory !== undefined) {
    const field = `${path}create.trajectory.`;
    requireSameId(trajectory.trajectoryId, trajectoryId, `${field}trajectory_id`);
    if (trajectory.ifExists !== IfExists.UNSPECIFIED) {
      throw invalidField(`${field}if_exists`, 'must be unset: open returns what the same request created');
    }
    const key = requiredKey(idempotencyKeyOf(rpc.createTrajectory, trajectory), field);
    return { making: toNewTrajectory(app, trajectory, field), key };
  }
  const field = `${path}create.branch.`;
  const request = required(branch, `${path}create.branch`);
  requireSameId(request.branchId, trajectoryId, `${field}branch_id`);
  const key = requiredKey(idempotencyKeyOf(rpc.branchTrajectory, request), field);
  return { making: toNewBranch(app, request, field), key };
}

function requireSameId(id: string, opened: string, field: string): void {
  if (id !== opened)
    throw invalidField(field, `must be the id of the trajectory that is opened, ${opened}, got "${id}"`);
}

function requiredKey(key: IdempotencyKey | undefined, path: string): IdempotencyKey {
  if (key === undefined) throw invalidField(`${path}request_id`, 'must be set when a trajectory is created by open');
  return key;
}

/** Returns the fields that roots and branches share. */
function commonFields(
  app: App,
  request: CreateTrajectoryRequest | BranchTrajectoryRequest,
  id: string,
): NewTrajectoryFields {
  const { $typeName: _, $unknown: __, ...fields } = request;
  return { ...fields, id: id || app.ids.uuid(), uid: app.ids.uid(), labels: toMap(request.labels) };
}
