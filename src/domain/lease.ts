import type { Instant } from './instant.ts';
import { type Pause, pausedTime } from './pauses.ts';

/**
 * The lease of a live rollout (Q3), by the database's clock. A lease does not elapse while the run is paused. `end` and
 * `attemptEnd` are valid for a run that was paused for `paused` nanoseconds in total; each later pause moves both.
 */
export interface Lease {
  /** Counted from the last claim or heartbeat. At most `attemptEnd`. */
  readonly end: Instant;
  readonly ms: bigint;
  /** End of `attempt_timeout`. Undefined: no bound. */
  readonly attemptEnd: Instant | undefined;
  readonly paused: bigint;
}

export const NANOS_PER_MS = 1_000_000n;

/** Returns the lease of an attempt that is claimed now. */
export function beginLease(now: Instant, ms: bigint, timeoutMs: bigint | undefined, pauses: readonly Pause[]): Lease {
  const attemptEnd = timeoutMs === undefined ? undefined : now + timeoutMs * NANOS_PER_MS;
  return { end: earliest(now + ms * NANOS_PER_MS, attemptEnd), ms, attemptEnd, paused: pausedTime(pauses, now) };
}

/** Returns the lease after a heartbeat. */
export function renewLease(lease: Lease, now: Instant, ms: bigint, pauses: readonly Pause[]): Lease {
  const { attemptEnd, paused } = leaseAt(lease, undefined, pauses, now);
  return { end: earliest(now + ms * NANOS_PER_MS, attemptEnd), ms, attemptEnd, paused };
}

/**
 * Returns the lease, adjusted by later pauses and the last append. `now` is required only if the run is paused. With
 * it, times that a clock has set ahead count no longer than from now on: a future append not at all.
 */
export function leaseAt(lease: Lease, lastAppend: Instant | undefined, pauses: readonly Pause[], now?: Instant): Lease {
  const paused = pausedTime(pauses, now);
  const since = paused - lease.paused;
  const attemptEnd = lease.attemptEnd === undefined ? undefined : lease.attemptEnd + since;
  const latest = now === undefined ? undefined : now + lease.ms * NANOS_PER_MS;
  const kept = earliest(lease.end + since, latest);
  if (lastAppend === undefined || (now !== undefined && lastAppend > now))
    return { ...lease, end: kept, attemptEnd, paused };
  const appended = lastAppend + lease.ms * NANOS_PER_MS + paused - pausedTime(pauses, lastAppend);
  return { ...lease, end: earliest(kept > appended ? kept : appended, attemptEnd), attemptEnd, paused };
}

function earliest(end: Instant, bound: Instant | undefined): Instant {
  return bound !== undefined && bound < end ? bound : end;
}
