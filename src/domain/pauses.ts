import type { Instant } from './instant.ts';
import type { Status } from './lifecycle.ts';

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
