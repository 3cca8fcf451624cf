import type { Caller } from '../../domain/caller.ts';
import type { InitialStatus, StageVerb, Status } from '../../domain/lifecycle.ts';
import type { Stage, StageKind, StageSettings, TimeSpan } from '../../domain/run.ts';
import type { Page, View } from './request.ts';
import type { MoveDetails } from './run.ts';

/** Identifies a stage by id, or by kind and number in a run. */
export type StageReference =
  | { readonly id: string }
  | { readonly runId: string; readonly kind: StageKind; readonly number: bigint };

export interface StageStore {
  /**
   * Returns the stage with this kind and number, and creates it with its first StatusChange if it is missing. Errors:
   * RUN_NOT_FOUND.
   */
  getOrCreateStage(caller: Caller, newStage: NewStage): Promise<{ readonly stage: Stage; readonly created: boolean }>;

  /** Returns undefined if the stage does not exist. */
  getStage(namespace: string, which: StageReference): Promise<Stage | undefined>;

  /**
   * In the order of creation, or of numbers if `filter.byNumber` is true; reversed if `filter.descending` is true. The
   * cursor is the key of the last row. Errors: RUN_NOT_FOUND.
   */
  listStages(namespace: string, runId: string, filter: StageFilter, page: Page<bigint>, view: View): Promise<Stage[]>;

  /**
   * Updates the given fields. Metrics and timings are merged by key. Errors: STAGE_NOT_FOUND, INVALID_REQUEST (too many
   * metrics or timings).
   */
  updateStage(namespace: string, id: string, changes: StageChanges): Promise<Stage>;

  /**
   * L2, L5: applies a verb as `moveRun` does, including `cancelRollouts`. Errors: STAGE_NOT_FOUND, ILLEGAL_TRANSITION,
   * RESULT_CONFLICT.
   */
  moveStage(
    caller: Caller,
    id: string,
    verb: StageVerb,
    details: MoveDetails,
    cancelRollouts?: boolean,
  ): Promise<Stage>;

  /**
   * Sets `queueCloseTime` if it is unset. Afterwards no rollout can be created in the stage (Q2). Terminal verbs do the
   * same, and Reopen clears it. Announces the run, so that waiting claims check again. Errors: STAGE_NOT_FOUND.
   */
  closeQueue(namespace: string, id: string): Promise<Stage>;
}

export interface NewStage extends StageSettings {
  readonly id: string;
  readonly runId: string;
  readonly kind: StageKind;
  readonly number: bigint;
  readonly status: InitialStatus;
}

/** Conditions are combined with AND. */
export interface StageFilter {
  readonly kinds?: readonly StageKind[];
  readonly statuses?: readonly Status[];
  /** If true, only stages with a model checkpoint match. */
  readonly hasCheckpoint?: boolean;
  readonly byNumber?: boolean;
  readonly descending?: boolean;
}

/** Absent fields are not changed. Present but undefined fields are cleared. */
export interface StageChanges extends Partial<StageSettings> {
  readonly statusMessage?: string;
  readonly modelCheckpointUri?: string;
  readonly metrics?: ReadonlyMap<string, number>;
  readonly completedSubsteps?: bigint;
  readonly timings?: ReadonlyMap<string, TimeSpan>;
}
