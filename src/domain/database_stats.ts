/** Numbers of rows, of all namespaces. Deleted ones whose rows are still being removed may count. */
export interface DatabaseCounts {
  readonly trajectories: bigint;
  readonly steps: bigint;
  /** States with rows of their own. */
  readonly states: bigint;
  readonly runs: bigint;
  readonly rollouts: bigint;
  readonly metricPoints: bigint;
}

/** How much a run has stored. */
export interface RunSize {
  readonly runId: string;
  readonly name: string;
  readonly trajectories: bigint;
  /** Own steps of the trajectories of the run. */
  readonly steps: bigint;
}
