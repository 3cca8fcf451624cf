import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import type { Lease } from '../../../../domain/lease.ts';
import type { LockedRollout } from './writing.ts';

/** Columns of a rollout's lease. */
export const LEASE_COLUMNS = ['lease_ms', 'lease_end_time', 'attempt_end_time', 'paused_us'] as const;

type LeaseRow = Pick<LockedRollout, (typeof LEASE_COLUMNS)[number]>;

/** Returns undefined if no worker holds the rollout. */
export function readLease(row: LeaseRow): Lease | undefined {
  if (row.lease_end_time === null) return undefined;
  return {
    end: parseInstant(row.lease_end_time),
    ms: row.lease_ms,
    attemptEnd: row.attempt_end_time === null ? undefined : parseInstant(row.attempt_end_time),
    paused: row.paused_us * 1000n,
  };
}

export function bindLease({ end, ms, attemptEnd, paused }: Lease): LeaseRow {
  return {
    lease_ms: ms,
    lease_end_time: formatInstant(end, 6),
    attempt_end_time: attemptEnd === undefined ? null : formatInstant(attemptEnd, 6),
    paused_us: paused / 1000n,
  };
}
