export interface AppSettings {
  /**
   * Groups of batches that may be in flight at once: 1 for an engine with one writer, more where transactions run side
   * by side.
   */
  readonly commitLanes: number;
  /** A reader of a stream that takes nothing for so long is cut off (R3). */
  readonly slowReaderMs: number;
  /** A follower or a watcher is told at least this often that it is caught up (RD2). */
  readonly progressMs: number;
  /** Followers and watchers look again this often, hint or no hint (RD2). */
  readonly pollMs: number;
  /** A watcher of a run is told of changes at most this often (M5). */
  readonly watchMs: number;
  /** Between two rounds of maintenance; 0: none. */
  readonly maintenanceMs: number;
  /** Between two looks for stale runs that asked to be failed; 0: none. */
  readonly staleSweepMs: number;
  /** Between two looks for leases that have ended (Q3); 0: none. */
  readonly leaseSweepMs: number;
  /** What a claim has found is there at the latest so long after it looked: its statements are given up before. */
  readonly claimMostMs: number;
  /** A claim that waits looks again at hints at most this often (Q2). */
  readonly claimRestMs: number;
  /** How long a state lives that no step refers to (S2). */
  readonly stateTtlHours: number;
  /** How long an idempotency key is kept (ID1). */
  readonly requestDays: number;
}

export const DEFAULT_SETTINGS: AppSettings = {
  commitLanes: 1,
  slowReaderMs: 60_000,
  progressMs: 15_000,
  pollMs: 1000,
  watchMs: 250,
  maintenanceMs: 10 * 60_000,
  staleSweepMs: 5000,
  leaseSweepMs: 1000,
  claimMostMs: 10_000,
  claimRestMs: 100,
  stateTtlHours: 24,
  requestDays: 7,
};
