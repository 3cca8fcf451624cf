import type { Caller } from '../../domain/caller.ts';
import type { Experiment } from '../../domain/run.ts';
import type { IdempotencyKey, Page, View } from './request.ts';

/** Identifies an experiment by id or by name. */
export type ExperimentReference = { readonly id: string } | { readonly name: string };

export interface ExperimentStore {
  /**
   * Creates an experiment, or returns the one with the name. Errors: EXPERIMENT_EXISTS (id, or name without
   * `returnExisting`), REQUEST_ID_REUSED, EXPERIMENT_NOT_FOUND (created with this key and deleted since).
   */
  createExperiment(caller: Caller, newExperiment: NewExperiment, key?: IdempotencyKey): Promise<Experiment>;

  /** Returns undefined if the experiment does not exist. */
  getExperiment(namespace: string, which: ExperimentReference): Promise<Experiment | undefined>;

  /** Lists experiments, newest first. The cursor is the key of the last row. */
  listExperiments(namespace: string, filter: ExperimentFilter, page: Page<bigint>, view: View): Promise<Experiment[]>;

  /** Updates the given fields. Errors: EXPERIMENT_NOT_FOUND, EXPERIMENT_EXISTS (name). */
  updateExperiment(namespace: string, id: string, changes: ExperimentChanges): Promise<Experiment>;

  /**
   * Hides and fences the experiment with all its runs and trajectories (B4); `purgeDeleted` removes the rows. Errors:
   * EXPERIMENT_NOT_FOUND, HAS_BRANCHES, RUN_ACTIVE.
   */
  deleteExperiment(namespace: string, id: string, onBranches: BranchPolicy, cancelLive?: boolean): Promise<RunDeletion>;
}

type ExperimentFields = Omit<Experiment, 'key' | 'runCount' | 'createTime' | 'updateTime'>;

export interface NewExperiment extends ExperimentFields {
  /** Returns the experiment with the name, whatever its other fields. */
  readonly returnExisting?: boolean;
}

/** Absent fields are not changed. Present but undefined fields are cleared. */
export type ExperimentChanges = Partial<Omit<ExperimentFields, 'id'>>;

/** Conditions are combined with AND. */
export interface ExperimentFilter {
  readonly environmentName?: string;
  readonly agentType?: string;
  readonly tags?: readonly string[];
}

/** What becomes of branches from outside of what is deleted. */
export type BranchPolicy = 'REFUSE' | 'CASCADE';

export interface RunDeletion {
  readonly runs: bigint;
  readonly trajectories: bigint;
  /** Keys of runs that are not found any more. */
  readonly runKeys: readonly bigint[];
  /** Keys of trajectories that are not found any more. */
  readonly trajectoryKeys: readonly bigint[];
}
