import type { Instant } from './instant.ts';
import type { Status } from './lifecycle.ts';

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

/** A pause of a run. */
export interface Pause {
  readonly start: Instant;
  /** Undefined while the run is paused. */
  readonly end: Instant | undefined;
}

/** Number of pauses that are kept per run. Older pauses are kept as a total. */
const KEPT_PAUSES = 100;

/**
 * Returns the pauses of a run after a change of its status, by the database's clock. Pauses are ordered by time; only
 * the last one can be without an end.
 */
export function pausesAfter(pauses: readonly Pause[], from: Status, to: Status, now: Instant): readonly Pause[] {
  const ended =
    from === 'PAUSED' ? pauses.map(({ start, end }) => ({ start, end: end ?? latest(start, now) })) : pauses;
  return to === 'PAUSED' ? shortened([...ended, { start: now, end: undefined }]) : ended;
}

/** Merges the two oldest pauses into one of the same total length, which ends with the younger one. */
function shortened(pauses: readonly Pause[]): readonly Pause[] {
  const [oldest, next, ...others] = pauses;
  if (pauses.length <= KEPT_PAUSES || oldest === undefined || next?.end === undefined) return pauses;
  return [{ start: next.start - lengthAt(oldest, next.start), end: next.end }, ...others];
}

export function isPaused(pauses: readonly Pause[]): boolean {
  const last = pauses.at(-1);
  return last !== undefined && last.end === undefined;
}

/**
 * Returns for how many nanoseconds a run had been paused at a time. Without a time, returns the total; the run must not
 * be paused then.
 */
export function pausedTime(pauses: readonly Pause[], time?: Instant): bigint {
  return pauses.reduce((total, pause) => total + lengthAt(pause, time ?? pause.end ?? pause.start), 0n);
}

/** Returns how much of a pause had elapsed at a time. */
function lengthAt({ start, end }: Pause, time: Instant): bigint {
  const until = end === undefined || time < end ? time : end;
  return until > start ? until - start : 0n;
}

function latest(a: Instant, b: Instant): Instant {
  return a > b ? a : b;
}
