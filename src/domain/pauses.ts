import type { Instant } from './instant.ts';
import type { Status } from './lifecycle.ts';

/** A pause of a run. */
export interface Pause {
  readonly start: Instant;
  /** Undefined while the pause lasts. */
  readonly end: Instant | undefined;
}

/** Number of pauses that a run keeps. Of older ones, it keeps their total. */
const KEPT_PAUSES = 100;

/** Returns the pauses of a run after its status has changed, by the database's clock. They are in order of time; at most the last one has no end. */
export function pausesAfter(pauses: readonly Pause[], from: Status, to: Status, now: Instant): readonly Pause[] {
  const ended =
    from === 'PAUSED' ? pauses.map(({ start, end }) => ({ start, end: end ?? latest(start, now) })) : pauses;
  return to === 'PAUSED' ? shortened([...ended, { start: now, end: undefined }]) : ended;
}

/** Merges the two oldest pauses into one of the same total that ends with the younger one. */
function shortened(pauses: readonly Pause[]): readonly Pause[] {
  const [oldest, next, ...others] = pauses;
  if (pauses.length <= KEPT_PAUSES || oldest === undefined || next?.end === undefined) return pauses;
  return [{ start: next.start - lengthAt(oldest, next.start), end: next.end }, ...others];
}

export function isPaused(pauses: readonly Pause[]): boolean {
  const last = pauses.at(-1);
  return last !== undefined && last.end === undefined;
}

/** Returns for how many nanoseconds a run had been paused at a time. Without a time: in total, for a run that is not paused. */
export function pausedTime(pauses: readonly Pause[], time?: Instant): bigint {
  return pauses.reduce((total, pause) => total + lengthAt(pause, time ?? pause.end ?? pause.start), 0n);
}

/** How much of a pause had passed at a time. */
function lengthAt({ start, end }: Pause, time: Instant): bigint {
  const until = end === undefined || time < end ? time : end;
  return until > start ? until - start : 0n;
}

function latest(a: Instant, b: Instant): Instant {
  return a > b ? a : b;
}
