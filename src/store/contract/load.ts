/** What a store does at the moment, from memory: reading it costs no statement. */
export interface StoreLoad {
  /** By pool. Postgres: `shared` and `appends`. SQLite: `reads` (threads) and `writes` (the one writer). */
  readonly pools: Readonly<Record<string, PoolLoad>>;
  /** Whether changes of other instances are announced to this one. Undefined on SQLite, where there are none. */
  readonly listening: boolean | undefined;
  /** Size of the write-ahead log. Undefined on Postgres. */
  readonly walBytes: number | undefined;
  readonly statements: readonly StatementTime[];
}

/** Connections of a pool, or on SQLite what takes their place. */
export interface PoolLoad {
  readonly used: number;
  readonly most: number;
  /** Work that waits for one. */
  readonly waiting: number;
}

/** How long statements of one name took since the store was opened. */
export interface StatementTime {
  /** Verb and table, of closed sets: `insert segments`. */
  readonly name: string;
  readonly count: number;
  readonly seconds: number;
  /** Number of statements by the first of `STATEMENT_SECONDS` that they did not exceed. */
  readonly buckets: readonly number[];
}

/** Upper bounds of the buckets of durations of statements. */
export const STATEMENT_SECONDS = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5] as const;

/** Rollouts of all namespaces. Each number is at most `MOST_COUNTED`. */
export interface WorkCounts {
  readonly pending: number;
  /** Seconds since the first one of these was created. 0 if there is none. */
  readonly oldestPendingSeconds: number;
  /** Leases that have not ended. */
  readonly liveLeases: number;
  /** Leases that have ended, and whose rollouts are not requeued yet. */
  readonly endedLeases: number;
}

export const MOST_COUNTED = 100_000;
