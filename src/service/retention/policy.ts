import { create } from '@bufbuild/protobuf';
import { type Duration, DurationSchema } from '@bufbuild/protobuf/wkt';
import {
  RetentionPolicySchema,
  type RetentionPolicy as WirePolicy,
} from '../../../gen/es/anabranch/v1/retention_service_pb.js';
import { OnBranches } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { TrajectoryStatus } from '../../domain/lifecycle.ts';
import { ENDED, type RetentionPolicy, type StatePolicy, type TrajectoryPolicy } from '../../domain/retention.ts';
import { required } from '../convert/required.ts';
import { fromStatus, toStatuses } from '../convert/values.ts';
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

/** Defaults are filled in. */
export function fromPolicy(policy: RetentionPolicy): WirePolicy {
  const scope = { runId: policy.runId ?? '', experimentId: policy.experimentId ?? '' };
  return create(
    RetentionPolicySchema,
    'states' in policy
      ? { ...scope, states: fromStatePolicy(policy.states) }
      : { ...scope, trajectories: fromTrajectoryPolicy(policy.trajectories) },
  );
}

function fromStatePolicy(policy: StatePolicy) {
  return {
    stateNames: [...policy.names],
    contentMediaTypes: [...policy.mediaTypes],
    keepLast: BigInt(policy.keepLast),
    keepEvery: policy.keepEvery,
    olderThan: fromNanos(policy.olderThan),
    includeTagged: !policy.keepTagged,
    includeBranchPoints: !policy.keepBranchPoints,
    includeTerminal: !policy.keepTerminal,
  };
}

function fromTrajectoryPolicy(policy: TrajectoryPolicy) {
  return {
    statuses: policy.statuses.map(fromStatus),
    labels: Object.fromEntries(policy.labels),
    keepLast: BigInt(policy.keepLast),
    olderThan: fromNanos(policy.olderThan),
    includeTagged: !policy.keepTagged,
    onBranches: OnBranches[policy.onBranches],
  };
}

function fromNanos(nanos: bigint): Duration {
  return create(DurationSchema, { seconds: nanos / 1_000_000_000n, nanos: Number(nanos % 1_000_000_000n) });
}
