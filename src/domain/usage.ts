/** What segments or states take, in bytes, without indexes and the overhead of the database. */
export interface UsedBytes {
  /** As sent: steps and states that are shared count for each trajectory that owns them or step that has them. */
  logical: bigint;
  /** As encoded, each row once. */
  stored: bigint;
  /** The part of `stored` that trajectories outside the scope refer to too. */
  shared: bigint;
}

export interface StorageUsage {
  readonly steps: UsedBytes;
  readonly states: UsedBytes;
}

/** Steps that were measured so far, and all of them. */
export interface UsageProgress {
  readonly done: bigint;
  readonly total: bigint;
}
