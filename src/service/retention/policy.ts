import type { Duration } from '@bufbuild/protobuf/wkt';
import type { RetentionPolicy as WirePolicy } from '../../../gen/es/anabranch/v1/retention_service_pb.js';
import { OnBranches } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { TrajectoryStatus } from '../../domain/lifecycle.ts';
import { ENDED, type RetentionPolicy, type StatePolicy, type TrajectoryPolicy } from '../../domain/retention.ts';
import { required } from '../convert/required.ts';
import { toStatuses } from '../convert/values.ts';
import { toOnBranches } from '../trajectory/requests.ts';

/** Errors: INVALID_REQUEST, if there is no policy. The rules of the proto require exactly one kind. */
export function toPolicy(policy: WirePolicy | undefined): RetentionPolicy {
  const { runId, experimentId, states, trajectories } = required(policy, 'policy');
  const scope = { runId: runId || undefined, experimentId: experimentId || undefined };
  return states === undefined
    ? { ...scope, trajectories: toTrajectoryPolicy(required(trajectories, 'policy.trajectories')) }
    : { ...scope, states: toStatePolicy(states) };
}

function toStatePolicy(policy: NonNullable<WirePolicy['states']>): StatePolicy {
  return {
    names: policy.stateNames,
    mediaTypes: policy.contentMediaTypes,
    keepLast: Number(policy.keepLast),
    keepEvery: policy.keepEvery,
    olderThan: toNanos(policy.olderThan),
    keepTagged: !policy.includeTagged,
    keepBranchPoints: !policy.includeBranchPoints,
    keepTerminal: !policy.includeTerminal,
  };
}

function toTrajectoryPolicy(policy: NonNullable<WirePolicy['trajectories']>): TrajectoryPolicy {
  const { onBranches } = policy;
  return {
    statuses: policy.statuses.length === 0 ? ENDED : (toStatuses(policy.statuses) as TrajectoryStatus[]),
    labels: new Map(Object.entries(policy.labels)),
    keepLast: Number(policy.keepLast),
    olderThan: toNanos(policy.olderThan),
    keepTagged: !policy.includeTagged,
    onBranches: onBranches === OnBranches.UNSPECIFIED ? 'KEEP_SHARED' : toOnBranches(onBranches),
  };
}

function toNanos(duration: Duration | undefined): bigint {
  return duration === undefined ? 0n : duration.seconds * 1_000_000_000n + BigInt(duration.nanos);
}
