import { isReadOnly } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';
import type { Trace, TracePart } from '../store/contract/trace.ts';
import type { PrincipalLimits } from './principals.ts';

export interface AppSettings {
  /** Maximum number of group commits in flight: 1 for an engine with one writer, more for concurrent transactions. */
  readonly commitsAtOnce: number;
  /** Memory of steps that were received and are not stored yet, of all calls together. */
  readonly waitingBytes: number;
  /**
   * A stream ends when its client has read nothing for this long (R3), and an import for which others wait when its
   * client has sent next to nothing for this long (V6).
   */
  readonly slowReaderMs: number;
  /** Maximum time between messages to a follower or watcher that is caught up (RD2). */
  readonly progressMs: number;
  /** Followers and watchers read again this often without a hint (RD2). */
  readonly pollMs: number;
  /** Minimum time between two looks of a watcher (M5). */
  readonly watchMs: number;
  /** Lease of the instance that runs the background jobs. 0: this instance runs them without a lease. */
  readonly jobLeaseMs: number;
  /** Time between two rounds of maintenance. 0 disables them. */
  readonly maintenanceMs: number;
  /** Segments of a trajectory that has not grown for this long are merged. 0 disables all merging. */
  readonly mergeIdleMs: number;
  /** While segments with so many bytes wait to be merged, appends wait for merges. */
  readonly mergeBacklogBytes: number;
  /** Time between two checks for free space of the database file, to return it. 0 disables them. */
  readonly freeSpaceMs: number;
  /** Time between two sweeps of stale runs with `fail_when_stale`. 0 disables them. */
  readonly staleSweepMs: number;
  /** Time between two sweeps of ended leases (Q3). 0 disables them. */
  readonly leaseSweepMs: number;
  /** Time between two checks for due retention policies (S15). 0: this instance applies none. */
  readonly retentionMs: number;
  /** Lease of an execution of a retention policy. It is renewed six times as often. */
  readonly retentionLeaseMs: number;
  /** Maximum time in which a claim that has read a stage can still commit. */
  readonly claimMostMs: number;
  /** Minimum time between two attempts of a waiting claim (Q2). */
  readonly claimRestMs: number;
  /** Retention of states that no step refers to (S2). */
  readonly stateTtlHours: number;
  /** Retention of idempotency keys (ID1). */
  readonly requestDays: number;
  /** Whether callers must show an API key (N2). */
  readonly authenticated: boolean;
  /** Time between two checks for revoked keys. Keys that were not checked for `keyTrustMs` are not accepted. */
  readonly keyCheckMs: number;
  readonly keyTrustMs: number;
  /** Limits of one principal, if callers must show a credential. */
  readonly perPrincipal: PrincipalLimits;
}

export const DEFAULT_SETTINGS: AppSettings = {
  commitsAtOnce: 1,
  waitingBytes: LIMITS.waitingBytes,
  slowReaderMs: 60_000,
  progressMs: 15_000,
  pollMs: 1000,
  watchMs: 250,
  jobLeaseMs: 5000,
  maintenanceMs: 10 * 60_000,
  mergeIdleMs: 30_000,
  mergeBacklogBytes: 128 * 1024 * 1024,
  freeSpaceMs: 5000,
  staleSweepMs: 5000,
  leaseSweepMs: 1000,
  retentionMs: 10_000,
  retentionLeaseMs: 60_000,
  claimMostMs: 10_000,
  claimRestMs: 100,
  stateTtlHours: 24,
  requestDays: 7,
  authenticated: false,
  keyCheckMs: 2000,
  keyTrustMs: 5000,
  perPrincipal: LIMITS,
};

/** Work in the background, as metrics and the log name it. */
export type Job =
  | 'maintenance'
  | 'purge of deleted rows'
  | 'cancellation of rollouts'
  | 'sweep of stale runs'
  | 'sweep of leases'
  | 'renewal of the lease of jobs'
  | 'retention'
  | 'renewal of the lease of a retention policy'
  | 'check of credentials'
  | 'return of free space';

/** What the parts of the server report for its metrics. All texts are of closed sets. */
export interface Meter {
  called(method: string, code: string, seconds: number): void;
  /** A call has failed. The reason is one of error.proto, or empty if the error has none. */
  failed(reason: string): void;
  /** A call was refused for its credential. */
  refused(): void;
  /** A group of batches was sent to the store, which has committed so many steps of it. */
  committed(steps: number, seconds: number): void;
  /** A round of a job has ended, after so many rows, batches, policies or credentials. */
  worked(job: Job, items: number, seconds: number, failed: boolean): void;
}

/** Where calls and group commits are traced. */
export interface Tracing {
  /** Begins the trace of a call, or continues that of its caller. Undefined: the call is not sampled. */
  call(method: string, headers: Readonly<Record<string, unknown>>): CallTrace | undefined;
  /** Begins the trace of a group commit, with links to the calls whose steps it has. */
  groupCommit(calls: readonly Trace[]): TracePart;
}

export interface CallTrace extends TracePart {
  readonly traceId: string;
}

/** For parts that run without a server. */
export const NO_METER: Meter = {
  called() {},
  failed() {},
  refused() {},
  committed() {},
  worked() {},
};

/** The part of pino's interface that is used. Payloads are never logged. */
export interface Logger {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** Logs that work in the background failed. A read-only database is not logged for each of its works. */
export function logFailure(logger: Logger, error: unknown, message: string, fields: object = {}): void {
  logger[isReadOnly(error) ? 'debug' : 'warn']({ ...fields, err: error }, message);
}
