import type { Caller } from '../../domain/caller.ts';
import type { Experiment } from '../../domain/run.ts';
import type { BookDeletion, BranchPolicy } from './book_deletion.ts';
import type { IdempotencyKey } from './idempotency.ts';
import type { Page } from './page.ts';

/** `BASIC` leaves out what can be large: fields that hold JSON are empty. */
export type BookView = 'BASIC' | 'FULL';

/** An experiment by its id or by its name. */
export type ExperimentPlace = { readonly id: string } | { readonly name: string };

export interface ExperimentStore {
  /** Errors: EXPERIMENT_EXISTS (id or name), REQUEST_ID_REUSED, EXPERIMENT_NOT_FOUND (made under this key, deleted since). */
  createExperiment(caller: Caller, making: NewExperiment, key?: IdempotencyKey): Promise<Experiment>;

  /** Undefined if none is there. */
  getExperiment(namespace: string, which: ExperimentPlace): Promise<Experiment | undefined>;

  /** Newest first. The cursor is the key of the last row. */
  listExperiments(
    namespace: string,
    filter: ExperimentFilter,
    page: Page<bigint>,
    view: BookView,
  ): Promise<Experiment[]>;

  /** Changes what is given. Errors: EXPERIMENT_NOT_FOUND, EXPERIMENT_EXISTS (name). */
  updateExperiment(namespace: string, id: string, changes: ExperimentChanges): Promise<Experiment>;

  /** Hides and fences the experiment with all its runs and trajectories (B4); `purgeDeleted` does the rest. Errors: EXPERIMENT_NOT_FOUND, HAS_BRANCHES, RUN_ACTIVE. */
  deleteExperiment(
    namespace: string,
    id: string,
    onBranches: BranchPolicy,
    cancelLive?: boolean,
  ): Promise<BookDeletion>;
}

export interface NewExperiment {
  readonly id: string;
  readonly name: string;
  readonly description: string;
  readonly environmentName: string;
  readonly environmentConfigJson: string;
  readonly agentType: string;
  readonly agentConfigJson: string;
  readonly defaultConfigJson: string;
  readonly maxSteps: bigint | undefined;
  readonly seed: bigint | undefined;
  readonly tags: readonly string[];
  readonly metadataJson: string;
}

/** What is not there stays; `undefined` that is there clears. */
export type ExperimentChanges = Partial<Omit<NewExperiment, 'id'>>;

/** Filters that are set must all hold. */
export interface ExperimentFilter {
  readonly environmentName?: string;
  readonly agentType?: string;
  readonly tags?: readonly string[];
}
