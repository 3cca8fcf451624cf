import type { Digest } from '../../domain/ids.ts';
import type { Instant } from '../../domain/instant.ts';
import type { OwnedRange, TreeLineage, TreeRange } from '../../domain/lineage.ts';
import type { StateRef, StoredStep } from '../../domain/step.ts';
import type { FoundText, SearchQuery } from '../../domain/step_search.ts';
import type { SeriesQuery, StepSeries } from '../../domain/step_series.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { Page } from './request.ts';

export interface StepStore {
  /**
   * RD1: returns steps of a lineage in order, in one statement: [range.from, range.to), at most `range.maxSteps`, and
   * about `range.maxBytes` (but at least one step). Ends before a step that was deleted, and before a damaged one.
   * Errors: STEP_CORRUPT, if the first step is damaged. `lineage` must cover the range.
   */
  readSteps(
    namespace: string,
    tree: bigint,
    lineage: readonly OwnedRange[],
    range: StepRange,
    view: StepView,
  ): Promise<OwnedStep[]>;

  /** Like `readSteps`, but returns the steps as the bytes of responses, in parts of one owner each. */
  readEncodedSteps(
    namespace: string,
    tree: bigint,
    lineage: readonly OwnedRange[],
    range: StepRange,
    view: StepView,
  ): Promise<EncodedSteps[]>;

  /**
   * Returns ranges of steps of several trajectories, in at most two statements. The caller bounds their number and
   * size. Some may end early, or be empty: if steps were deleted or are damaged, or the trajectory has many ancestors.
   * Then `readEncodedSteps` tells why.
   */
  readEncodedRanges(
    namespace: string,
    ranges: readonly TrajectoryRange[],
    view: StepView,
    inlineBytes?: number,
  ): Promise<EncodedSteps[][]>;

  /** Returns at most `limit` numbers, rewards and hashes of stored bytes in order, for comparisons. */
  readOutlines(
    namespace: string,
    tree: bigint,
    lineage: readonly OwnedRange[],
    from: bigint,
    limit: number,
  ): Promise<StepOutline[]>;

  /** RD9: returns a value of the steps of each lineage, downsampled. Errors: STEP_CORRUPT. */
  readStepSeries(namespace: string, of: readonly TreeLineage[], query: SeriesQuery): Promise<StepSeries[]>;

  /** RD10: returns matches in order, at least `limit` if there are as many. Leaves out damaged steps. */
  searchSteps(namespace: string, ranges: readonly TreeRange[], query: SearchQuery): Promise<readonly FoundText[]>;

  /** RD4: returns a page of steps by filter and order. */
  listSteps(
    namespace: string,
    where: StepFilter,
    order: StepSort,
    page: StepPage,
    view: StepView,
  ): Promise<ListedSteps>;

  /**
   * RD3: returns the latest step at or before `atOrBefore` that has all named states, or any state if `names` is empty.
   */
  findCheckpoint(
    namespace: string,
    tree: bigint,
    lineage: readonly OwnedRange[],
    atOrBefore: bigint,
    names: readonly string[],
  ): Promise<OwnedStep | undefined>;

  /**
   * S5: returns the states of a name from step `from` on, in order of step. Small ones have their bytes, whose digest
   * the caller compares (S3). Returns fewer than `limit` only at the end of the lineage. Errors: STEP_CORRUPT.
   */
  listStepStates(
    namespace: string,
    tree: bigint,
    lineage: readonly OwnedRange[],
    states: { readonly name: string; readonly from: bigint; readonly limit: number },
  ): Promise<OwnedState[]>;

  /**
   * S1: returns those of the named states of a step that are small, with their verified bytes (S3). All others are
   * found by their digests. None if the step does not exist. Errors: STEP_CORRUPT, STATE_CORRUPT.
   */
  readSmallStates(
    namespace: string,
    place: StepPlace,
    names: readonly string[],
  ): Promise<ReadonlyMap<string, Uint8Array>>;
}

/** A step and the trajectory that owns it, by row keys. */
export type StepPlace = { readonly tree: bigint; readonly owner: bigint; readonly stepNumber: bigint };

/** FM7: `BASIC` returns actions, observations, infoJson and metadataJson empty. */
export type StepView = 'BASIC' | 'FULL';

export interface StepRange {
  readonly from: bigint;
  readonly to: bigint;
  readonly maxSteps: number;
  readonly maxBytes: number;
  /** Of encoded steps, also returns the states with at most this many bytes. Default: none. */
  readonly inlineBytes?: number;
}

/** Steps [from, to) of a trajectory, inherited steps included. */
export type TrajectoryRange = Pick<StepRange, 'from' | 'to'> & { readonly trajectory: Trajectory };

/** A step and the trajectory that owns it. */
export interface OwnedStep {
  readonly owner: { readonly key: bigint; readonly id: string };
  readonly step: StoredStep;
  /** With `StepFilter.inherited`: id of a listed trajectory that has the step in its lineage. */
  readonly heir?: string;
  /** As in `EncodedSteps`. */
  readonly states?: readonly NamedState[];
}

/** Consecutive steps of one owner, at least one. Each is encoded as the field `steps` of a response (`RESPONSE`). */
export interface EncodedSteps {
  readonly owner: OwnedStep['owner'];
  readonly count: number;
  /** At most about 1 MiB, as a message. */
  readonly bytes: Uint8Array;
  /** States of the steps and of their contents in order. Undefined unless they were requested. */
  readonly states?: readonly NamedState[];
}

/** A state that a step names. Small states have their verified bytes (S3). */
export type NamedState = Pick<StateRef, 'digest' | 'data'>;

export interface OwnedState {
  readonly owner: { readonly key: bigint; readonly id: string };
  readonly stepNumber: bigint;
  readonly state: StateRef;
}

export interface StepOutline {
  readonly stepNumber: bigint;
  readonly reward: number | undefined;
  /** SHA-256 of the step as the client sent it, without the states that were attached later. */
  readonly hash: Digest;
}

/** Conditions are combined with AND. */
export interface StepFilter {
  /** Steps of a lineage, or own steps of all trajectories of a task, a run or an experiment. */
  readonly of:
    | { readonly tree: bigint; readonly lineage: readonly OwnedRange[] }
    | { readonly taskId: string }
    | { readonly runId: string }
    | { readonly experimentId: string };
  readonly terminalOnly?: boolean;
  /** Requires a state of this name; `true` for any name. */
  readonly hasState?: string | true;
  /** Requires a state with one of these names, at least one name. */
  readonly anyOfStates?: readonly string[];
  /** Requires all these labels. */
  readonly labels?: ReadonlyMap<string, string>;
  /** Inclusive bounds. NaN and missing rewards never match (W11). */
  readonly minReward?: number;
  readonly maxReward?: number;
  readonly commitTimeFrom?: Instant;
  readonly commitTimeTo?: Instant;
  /**
   * Of a task, a run or an experiment: also lists the steps that its trajectories inherit from others, or from hidden
   * ones, each once.
   */
  readonly inherited?: boolean;
}

/**
 * Ties are broken by trajectory key, then number, in the same direction. Missing and NaN rewards come last in both
 * directions. `METRIC` lists only steps with a value of `metric` that is not NaN, of trajectories that score it.
 */
export interface StepSort {
  readonly by: 'NUMBER' | 'REWARD' | 'TIME' | 'METRIC';
  /** The metric of order `METRIC`. */
  readonly metric?: string | undefined;
  readonly descending: boolean;
}

/** The last step of a page, with its sort values. */
export interface StepCursor {
  readonly key: bigint;
  readonly stepNumber: bigint;
  readonly reward: number | undefined;
  readonly commitTime: Instant;
  /** Value of the metric of order `METRIC`. */
  readonly metric?: number | undefined;
}

/** A page of listed steps. */
export interface ListedSteps {
  readonly steps: readonly OwnedStep[];
  /** Whether the page ends before its limit because of the size of its steps. */
  readonly isCut: boolean;
}

/** A page also ends at about `maxBytes`, but has at least one step if there is one. */
export interface StepPage extends Page<StepCursor>, Pick<StepRange, 'inlineBytes'> {
  readonly maxBytes: number;
}
