/** What becomes of branches from outside of what is deleted. */
export type BranchPolicy = 'REFUSE' | 'CASCADE';

export interface RunDeletion {
  readonly runs: bigint;
  readonly trajectories: bigint;
  /** Keys of trajectories and runs that are not found any more, for caches and followers. */
  readonly keys: readonly bigint[];
}
