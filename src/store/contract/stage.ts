import type { Caller } from '../../domain/caller.ts';
import type { InitialStatus, Status, Verb } from '../../domain/lifecycle.ts';
import type { Stage, StageKind, TimeSpan } from '../../domain/run.ts';
import type { BookView } from './experiment.ts';
import type { Page } from './page.ts';
import type { Said } from './run.ts';

/** A stage by its id, or by its kind and number in a run. */
export type StagePlace =
  | { readonly id: string }
  | { readonly runId: string; readonly kind: StageKind; readonly number: bigint };

export interface StageStore {
  /** Gives the stage of that kind and number, made with its first StatusChange if it was not there. Errors: RUN_NOT_FOUND. */
  getOrCreateStage(caller: Caller, making: NewStage): Promise<{ readonly stage: Stage; readonly created: boolean }>;

  /** Undefined if none is there. */
  getStage(namespace: string, which: StagePlace): Promise<Stage | undefined>;

  /** In the order of creation, or newest first if `filter.descending` is true. The cursor is the key of the last row. Errors: RUN_NOT_FOUND. */
  listStages(
    namespace: string,
    runId: string,
    filter: StageFilter,
    page: Page<bigint>,
    view: BookView,
  ): Promise<Stage[]>;

  /** C-33: of the COMPLETED ones of a kind that have a model checkpoint the one with the highest number. Errors: RUN_NOT_FOUND. */
  getLatestCheckpointedStage(namespace: string, runId: string, kind: StageKind): Promise<Stage | undefined>;

  /** Changes what is given; metrics and timings are merged by key. Errors: STAGE_NOT_FOUND, INVALID_REQUEST (too many metrics or timings). */
  updateStage(namespace: string, id: string, changes: StageChanges): Promise<Stage>;

  /** L2, L5: as moveRun, `cancelRollouts` too. Errors: STAGE_NOT_FOUND, ILLEGAL_TRANSITION, RESULT_CONFLICT. */
  moveStage(caller: Caller, id: string, verb: Verb, said: Said, cancelRollouts?: boolean): Promise<Stage>;

  /**
   * Sets `queueCloseTime` if it is not set: from then on no rollout is created in the stage (Q2). Terminal moves do so, too; a reopen clears it. Announces the
   * run, so that claims that wait look again. Errors: STAGE_NOT_FOUND.
   */
  closeQueue(namespace: string, id: string): Promise<Stage>;
}

export interface NewStage {
  readonly id: string;
  readonly runId: string;
  readonly kind: StageKind;
  readonly number: bigint;
  readonly status: InitialStatus;
  readonly batch: bigint | undefined;
  readonly phase: string;
  readonly modelUri: string;
  readonly totalSubsteps: bigint | undefined;
  readonly metadataJson: string;
}

/** Filters that are set must all hold. */
export interface StageFilter {
  readonly kinds?: readonly StageKind[];
  readonly statuses?: readonly Status[];
  readonly descending?: boolean;
}

/** What is not there stays; `undefined` that is there clears. */
export interface StageChanges {
  readonly batch?: bigint | undefined;
  readonly statusMessage?: string;
  readonly phase?: string;
  readonly modelUri?: string;
  readonly modelCheckpointUri?: string;
  readonly metrics?: ReadonlyMap<string, number>;
  readonly metadataJson?: string;
  readonly completedSubsteps?: bigint;
  readonly totalSubsteps?: bigint | undefined;
  readonly timings?: ReadonlyMap<string, TimeSpan>;
}
