import type { Digest } from './ids.ts';

/** What is wrong with stored rows. `docs/operations.md` explains each. */
export type StorageCheck =
  /** Parents, branch points and depths of trajectories. */
  | 'LINEAGE'
  /** Steps are missing, are stored twice, or belong to no trajectory. */
  | 'TILING'
  /** Bytes of steps are damaged. */
  | 'STEPS'
  /** A column of stored steps differs from the steps: what lists and summaries search. */
  | 'COLUMNS'
  /** Sums and bounds of a trajectory differ from its steps. */
  | 'SUMS'
  /** Bytes of a state are damaged, or its bases cannot restore it. */
  | 'STATES'
  /** A chain of bases is broken or exceeds its bounds. */
  | 'BASES'
  /** References from steps to states. */
  | 'REFERENCES'
  /** Tags of steps that do not exist. */
  | 'TAGS'
  /** A row belongs to a run, a stage or another resource that does not exist. */
  | 'ROWS'
  /** A status differs from the last entry of its history. */
  | 'HISTORY'
  /** Pages of tables and indexes, and entries of indexes, as the database itself checks them. */
  | 'DATABASE';

export interface StorageFault {
  readonly check: StorageCheck;
  /** Empty if the fault belongs to the whole database. */
  readonly namespace: string;
  /** What is wrong, with the names of rows. */
  readonly message: string;
  readonly trajectoryId?: string;
  /** Affected steps: [first, next). */
  readonly firstStepNumber?: bigint;
  readonly nextStepNumber?: bigint;
  /** The affected state. */
  readonly digest?: Digest;
}

export interface VerificationProgress {
  readonly doneSteps: bigint;
  readonly totalSteps: bigint;
  readonly doneStates: bigint;
  readonly totalStates: bigint;
  /** Faults that were found since the last progress. */
  readonly faults: readonly StorageFault[];
}

/** Numbers of rows, of all namespaces. Deleted ones whose rows are still being removed may count. */
export interface DatabaseCounts {
  readonly trajectories: bigint;
  readonly steps: bigint;
  /** States with rows of their own. */
  readonly states: bigint;
  /** States that are stored with their steps. */
  readonly smallStates: bigint;
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
