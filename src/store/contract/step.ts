import type { Digest } from '../../domain/ids.ts';
import type { Instant } from '../../domain/instant.ts';
import type { Segment } from '../../domain/lineage.ts';
import type { StateRef, StoredStep } from '../../domain/step.ts';
import type { Page } from './page.ts';

export interface StepStore {
  /**
   * The steps of a lineage's range in order, in one statement (RD1): from `range.from` up to `range.to`, at most `range.maxSteps`, and no
   * more than fit into about `range.maxBytes` (but at least one). Steps that are no longer there (deleted meanwhile) are simply missing:
   * since numbers have no gap, the caller sees it. `segments` covers the range and, for the sum of bytes before it, the step before.
   */
  readSteps(
    namespace: string,
    tree: bigint,
    segments: readonly Segment[],
    range: StepRange,
    view: StepView,
  ): Promise<OwnedStep[]>;

  /** Numbers, rewards and content digests of the range, in order: what comparing needs. At most `limit`. */
  readOutlines(
    namespace: string,
    tree: bigint,
    segments: readonly Segment[],
    from: bigint,
    limit: number,
  ): Promise<StepOutline[]>;

  /** Steps by filter and order, page by page (RD4). */
  listSteps(
    namespace: string,
    where: StepFilter,
    order: StepSort,
    page: StepPage,
    view: StepView,
  ): Promise<OwnedStep[]>;

  /** RD3: the latest step at or below `atOrBefore` that has all the named states (any state, if none is named). */
  findCheckpoint(
    namespace: string,
    tree: bigint,
    segments: readonly Segment[],
    atOrBefore: bigint,
    names: readonly string[],
  ): Promise<OwnedStep | undefined>;

  /** S5: the states named `name` from the step `from` on, in order of step: `limit` of them, or fewer where the lineage ends. */
  listStepStates(
    namespace: string,
    tree: bigint,
    segments: readonly Segment[],
    name: string,
    from: bigint,
    limit: number,
  ): Promise<OwnedState[]>;
}

/** BASIC leaves out actions, observations, infoJson and metadataJson (FM7): they come back empty. */
export type StepView = 'BASIC' | 'FULL';

export interface StepRange {
  readonly from: bigint;
  readonly to: bigint;
  readonly maxSteps: number;
  readonly maxBytes: number;
}

/** A step and the trajectory that owns it. */
export interface OwnedStep {
  readonly owner: { readonly key: bigint; readonly id: string };
  readonly step: StoredStep;
}

export interface OwnedState {
  readonly owner: { readonly key: bigint; readonly id: string };
  readonly stepNumber: bigint;
  readonly state: StateRef;
}

export interface StepOutline {
  readonly stepNumber: bigint;
  readonly reward: number | undefined;
  readonly contentDigest: Digest;
}

/** Filters that are set must all hold. */
export interface StepFilter {
  /** Steps of a lineage, or own steps of all trajectories of a task, a run or an experiment (ids of the latter). */
  readonly of:
    | { readonly tree: bigint; readonly segments: readonly Segment[] }
    | { readonly taskId: string }
    | { readonly runId: string }
    | { readonly experimentId: string };
  readonly terminalOnly?: boolean;
  /** Has a state of this name; `true`: of any. */
  readonly hasState?: string | true;
  /** Bounds, both included; NaN and missing rewards never match (W11). */
  readonly minReward?: number;
  readonly maxReward?: number;
  readonly commitTimeFrom?: Instant;
  readonly commitTimeTo?: Instant;
}

/** Ties are broken by trajectory key, then number, in the same direction. Missing and NaN rewards come last either way. */
export interface StepSort {
  readonly by: 'NUMBER' | 'REWARD' | 'TIME';
  readonly descending: boolean;
}

/** Where the last page ended: the sort value of its last step, and the step itself. */
export interface StepCursor {
  readonly key: bigint;
  readonly stepNumber: bigint;
  readonly reward: number | undefined;
  readonly commitTime: Instant;
}

/** A page also ends when about `maxBytes` are in it; it holds at least one step if there is one. */
export interface StepPage extends Page<StepCursor> {
  readonly maxBytes: number;
}
