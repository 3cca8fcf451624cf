import type { Reason } from './errors.ts';
import type { Instant } from './instant.ts';
import type { RemovedSize, RetentionPolicy } from './retention.ts';

/** S15: a policy as it is stored under its name. */
export interface NewPolicy {
  readonly name: string;
  readonly policy: RetentionPolicy;
  /** From the start of an execution to the start of the next one. */
  readonly intervalMs: number;
}

export interface StoredPolicy extends NewPolicy {
  readonly createTime: Instant;
  readonly updateTime: Instant;
  readonly dueTime: Instant;
  /** The last execution that ended. */
  readonly last: PastExecution | undefined;
}

/** How an execution ended. */
export interface ExecutionEnd {
  readonly removed: RemovedSize;
  /** Undefined if the execution succeeded. */
  readonly error: { readonly reason: Reason; readonly message: string } | undefined;
}

export interface PastExecution extends ExecutionEnd {
  readonly startTime: Instant;
  readonly endTime: Instant;
}

/** An execution that is under way. */
export interface PolicyLease {
  readonly namespace: string;
  readonly name: string;
  /** Unique, so that no other execution has it, also if a policy of the same name is created again. */
  readonly lease: string;
}

export interface DuePolicy extends PolicyLease {
  readonly policy: RetentionPolicy;
  readonly startTime: Instant;
}

const MS = 1_000_000n;
/** A failed execution is repeated after this time, or after the interval. */
const RETRY_MS = 10 * 60_000;

/** Returns when a policy is due after an execution. */
export function dueAfter({ startTime, endTime, error }: PastExecution, intervalMs: number): Instant {
  return error === undefined
    ? startTime + BigInt(intervalMs) * MS
    : endTime + BigInt(Math.min(intervalMs, RETRY_MS)) * MS;
}

/** Returns the end of a lease that begins or is renewed now. */
export function leaseEnd(now: Instant, leaseMs: number): Instant {
  return now + BigInt(leaseMs) * MS;
}
