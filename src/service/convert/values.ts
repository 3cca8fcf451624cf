import { create } from '@bufbuild/protobuf';
import { type Duration, DurationSchema, type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import { TimeSpanSchema, type TimeSpan as WireSpan } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { View as WireView } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { OnBranches } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { parseTagName } from '../../domain/ids.ts';
import { type Instant, instantFromParts, instantToParts, isInstant } from '../../domain/instant.ts';
import type { Status as DomainStatus, InitialStatus, SealStatus, TrajectoryStatus } from '../../domain/lifecycle.ts';
import type { TimeSpan } from '../../domain/run.ts';
import { tupleKey } from '../../domain/tuple_key.ts';
import type { BranchPolicy } from '../../store/contract/experiment.ts';
import type { View } from '../../store/contract/request.ts';
import { messageOf } from '../answer/message.ts';

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
function toStatus(status: Status): DomainStatus | undefined {
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

/** Range of google.protobuf.Duration: about 10,000 years. */
const LONGEST_SECONDS = 315_576_000_000n;

/** Returns what is wrong with a duration; undefined if nothing is wrong. */
export function durationFault({ seconds, nanos }: Duration): string | undefined {
  const isInRange = nanos >= 0 && nanos <= 999_999_999 && seconds <= LONGEST_SECONDS && seconds >= -LONGEST_SECONDS;
  return isInRange ? undefined : `must be a duration of at most ${LONGEST_SECONDS} s, with nanos from 0 to 999999999`;
}

/** Returns the duration in milliseconds, rounded up. */
export function toMillis(duration: Duration): number;
export function toMillis(duration: Duration | undefined): number | undefined;
export function toMillis(duration: Duration | undefined): number | undefined {
  return duration && Number(duration.seconds) * 1000 + Math.ceil(duration.nanos / 1_000_000);
}

export function fromSeconds(seconds: number): Duration;
export function fromSeconds(seconds: number | undefined): Duration | undefined;
export function fromSeconds(seconds: number | undefined): Duration | undefined {
  if (seconds === undefined) return undefined;
  const whole = Math.floor(seconds);
  const nanos = Math.min(999_999_999, Math.round((seconds - whole) * 1e9));
  return create(DurationSchema, { seconds: BigInt(whole), nanos });
}

export function fromMillis(millis: number): Duration {
  const whole = Math.floor(millis / 1000);
  return create(DurationSchema, { seconds: BigInt(whole), nanos: Math.round((millis - whole * 1000) * 1_000_000) });
}

/** Returns a value that the rules of the proto require, although its type allows undefined. */
export function required<T>(value: T | undefined, field: string): T {
  if (value === undefined) throw invalidField(field, 'must be set');
  return value;
}

/**
 * Requires that no two items have the same values. Ignores items without values. Errors: INVALID_REQUEST for the first
 * item that repeats the values of an earlier one. `[]` in `field` stands for its index.
 */
export function requireDistinct<Item>(
  items: readonly Item[],
  valuesOf: (item: Item) => readonly (string | number | bigint | undefined)[] | undefined,
  field: string,
  description: (item: Item) => string = () => 'must be unique within a request',
): void {
  const seen = new Set<string>();
  for (const [i, item] of items.entries()) {
    const values = valuesOf(item);
    if (values === undefined) continue;
    const key = tupleKey(...values);
    if (seen.has(key)) throw invalidField(field.replace('[]', `[${i}]`), description(item));
    seen.add(key);
  }
}

/** Returns the filters that are set: not undefined, not empty, not false. */
export function setFilters<Filters extends object>(
  filters: Filters,
): { [Name in keyof Filters]?: Exclude<Filters[Name], undefined> } {
  const set = Object.entries(filters).filter(([, value]) => !isUnset(value));
  return Object.fromEntries(set) as { [Name in keyof Filters]?: Exclude<Filters[Name], undefined> };
}

function isUnset(value: unknown): boolean {
  if (value instanceof Map) return value.size === 0;
  return value === undefined || value === '' || value === false || (Array.isArray(value) && value.length === 0);
}

/** Returns a bound for rewards. Errors: INVALID_REQUEST for NaN. */
export function toBound(reward: number | undefined, field: string): number | undefined {
  if (Number.isNaN(reward)) throw invalidField(field, 'must be a number, not NaN: no reward is below or above NaN');
  return reward;
}

export function toTimings(timings: { readonly [name: string]: WireSpan }): ReadonlyMap<string, TimeSpan> {
  return new Map(
    Object.entries(timings).map(([name, { startTime, endTime }]) => [
      name,
      { startTime: toInstant(startTime), endTime: toInstant(endTime) },
    ]),
  );
}

export function fromTimings(timings: ReadonlyMap<string, TimeSpan>): { [name: string]: WireSpan } {
  return fromMap(new Map([...timings].map(([name, span]) => [name, fromTimeSpan(span)])));
}

function fromTimeSpan({ startTime, endTime }: TimeSpan): WireSpan {
  return messageOf(TimeSpanSchema, { startTime: fromInstant(startTime), endTime: fromInstant(endTime) });
}

/** A step by its number, or by a tag of the trajectory. */
export type StepReference = { readonly stepNumber: bigint } | { readonly tag: string };

export function toStepReference(
  request: { readonly stepNumber?: bigint | undefined; readonly tag?: string | undefined },
  path = '',
): StepReference {
  if (request.tag !== undefined) return { tag: parseTagName(request.tag, `${path}tag`) };
  return { stepNumber: required(request.stepNumber, `${path}step_number`) };
}
