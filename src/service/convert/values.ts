import { create } from '@bufbuild/protobuf';
import { type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { View as WireView } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { OnBranches } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { type Instant, instantFromParts, instantToParts, isInstant } from '../../domain/instant.ts';
import type { Status as DomainStatus, InitialStatus, SealStatus, TrajectoryStatus } from '../../domain/lifecycle.ts';
import type { BranchPolicy } from '../../store/contract/experiment.ts';
import type { View } from '../../store/contract/request.ts';

/** Returns what is wrong with a time; undefined if nothing is wrong. */
export function instantFault({ seconds, nanos }: Timestamp): string | undefined {
  if (isInstant(seconds, nanos)) return undefined;
  return 'must be a time of the years 1 to 9999 with nanos from 0 to 999999999';
}

export function toInstant(time: Timestamp | undefined): Instant | undefined {
  return time && instantFromParts(time.seconds, time.nanos);
}

export function fromInstant(instant: Instant): Timestamp;
export function fromInstant(instant: Instant | undefined): Timestamp | undefined;
export function fromInstant(instant: Instant | undefined): Timestamp | undefined {
  if (instant === undefined) return undefined;
  const time = create(TimestampSchema);
  const { seconds, nanos } = instantToParts(instant);
  time.seconds = seconds;
  time.nanos = nanos;
  return time;
}

const STATUSES: Readonly<Record<DomainStatus, Status>> = {
  PENDING: Status.PENDING,
  INITIALIZING: Status.INITIALIZING,
  RUNNING: Status.RUNNING,
  PAUSED: Status.PAUSED,
  COMPLETED: Status.COMPLETED,
  FAILED: Status.FAILED,
  CANCELLED: Status.CANCELLED,
};

export function fromStatus(status: DomainStatus): Status {
  return STATUSES[status];
}

/** Returns undefined for STATUS_UNSPECIFIED. */
export function toStatus(status: Status): DomainStatus | undefined {
  return (Object.keys(STATUSES) as DomainStatus[]).find((known) => STATUSES[known] === status);
}

export function toStatuses(statuses: readonly Status[]): DomainStatus[] {
  return statuses.map(toStatus).filter((status) => status !== undefined);
}

/** Returns the initial status of a resource, or `unset` if the request does not set it. */
export function toInitialStatus(status: Status, unset: InitialStatus = 'PENDING'): InitialStatus {
  if (status === Status.UNSPECIFIED) return unset;
  if (status === Status.INITIALIZING) return 'INITIALIZING';
  return status === Status.RUNNING ? 'RUNNING' : 'PENDING';
}

/** Returns undefined for statuses that trajectories never have (L1). */
export function toTrajectoryStatus(status: Status): TrajectoryStatus | undefined {
  switch (status) {
    case Status.RUNNING:
      return 'RUNNING';
    case Status.COMPLETED:
      return 'COMPLETED';
    case Status.FAILED:
      return 'FAILED';
    case Status.CANCELLED:
      return 'CANCELLED';
    default:
      return undefined;
  }
}

/** Errors: INVALID_REQUEST for a status that is not terminal. */
export function toSealStatus(status: Status, field: string): SealStatus {
  const known = toTrajectoryStatus(status);
  if (known === undefined || known === 'RUNNING') {
    throw invalidField(field, 'must be STATUS_COMPLETED, STATUS_FAILED or STATUS_CANCELLED');
  }
  return known;
}

const NO_ENTRIES: ReadonlyMap<string, never> = new Map<string, never>();

export function toMap<V>(entries: { readonly [key: string]: V }): ReadonlyMap<string, V> {
  for (const _ in entries) return new Map(Object.entries(entries));
  return NO_ENTRIES;
}

/** Returns an object without a prototype, so that `__proto__` is an ordinary key. */
export function fromMap<V>(map: ReadonlyMap<string, V>): { [key: string]: V } {
  const entries: { [key: string]: V } = Object.create(null);
  for (const [key, value] of map) entries[key] = value;
  return entries;
}

/** FM7: `otherwise` is the default of the RPC: FULL for Get and Read, BASIC for List. */
export function toView(view: WireView, otherwise: View): View {
  if (view === WireView.UNSPECIFIED) return otherwise;
  return view === WireView.BASIC ? 'BASIC' : 'FULL';
}

/** B4: returns what a deletion does with branches outside of the deleted runs. */
export function toBranchPolicy(onBranches: OnBranches): BranchPolicy {
  return onBranches === OnBranches.CASCADE ? 'CASCADE' : 'REFUSE';
}
