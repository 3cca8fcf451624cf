import type { Instant } from './instant.ts';
import { type Pause, pausedTime } from './pauses.ts';

/**
 * The lease of a live rollout (Q3), by the database's clock. It does not run while the run is paused: `end` and `attemptEnd` hold for a run that was paused
 * for `paused` nanoseconds in all, and each later pause moves them on.
 */
export interface Lease {
  /** Counted from the last claim or heartbeat; at most `attemptEnd`. */
  readonly end: Instant;
  readonly ms: bigint;
  /** End of `attempt_timeout`; undefined: no bound. */
  readonly attemptEnd: Instant | undefined;
  readonly paused: bigint;
}

export const NANOS_PER_MS = 1_000_000n;

/** The lease of an attempt that is claimed now. */
export function beginLease(now: Instant, ms: bigint, timeoutMs: bigint | undefined, pauses: readonly Pause[]): Lease {
  const attemptEnd = timeoutMs === undefined ? undefined : now + timeoutMs * NANOS_PER_MS;
  return { end: earliest(now + ms * NANOS_PER_MS, attemptEnd), ms, attemptEnd, paused: pausedTime(pauses, now) };
}

/** The lease after a heartbeat. */
export function renewLease(lease: Lease, now: Instant, ms: bigint, pauses: readonly Pause[]): Lease {
  const { attemptEnd, paused } = leaseAt(lease, undefined, pauses, now);
  return { end: earliest(now + ms * NANOS_PER_MS, attemptEnd), ms, attemptEnd, paused };
}

/** The lease with later pauses and the last append taken into account. `now` may be left out if the run is not paused. */
export function leaseAt(lease: Lease, lastAppend: Instant | undefined, pauses: readonly Pause[], now?: Instant): Lease {
  const paused = pausedTime(pauses, now);
  const since = paused - lease.paused;
  const attemptEnd = lease.attemptEnd === undefined ? undefined : lease.attemptEnd + since;
  const kept = lease.end + since;
  if (lastAppend === undefined) return { ...lease, end: kept, attemptEnd, paused };
  const appended = lastAppend + lease.ms * NANOS_PER_MS + paused - pausedTime(pauses, lastAppend);
  return { ...lease, end: earliest(kept > appended ? kept : appended, attemptEnd), attemptEnd, paused };
}

function earliest(end: Instant, bound: Instant | undefined): Instant {
  return bound !== undefined && bound < end ? bound : end;
}
