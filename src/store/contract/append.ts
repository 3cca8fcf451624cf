import type { OpenRequest, Writing } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import type { AnabranchError } from '../../domain/errors.ts';
import type { Instant } from '../../domain/instant.ts';
import type { TrajectoryStatus } from '../../domain/lifecycle.ts';
import type { NewState, StateRef } from '../../domain/step.ts';
import type { Trajectory, TrajectoryRef } from '../../domain/trajectory.ts';
import type { TrajectoryCreation } from './trajectory.ts';

/**
 * Bytes of the steps of one segment with their small states, unless one step is larger, and number of the steps. A page
 * of steps reads whole segments, so a segment is not much larger than a page.
 */
export const SEGMENT_BYTES = 64 * 1024;
export const SEGMENT_STEPS = 256;

export interface AppendStore {
  /**
   * W1: opens a trajectory for appends. Stores the next epoch under the row's lock, or rejects the request and changes
   * nothing. With `create`, a missing trajectory is created in the same transaction. Errors: those of `decideOpen`;
   * with `create` also those of createTrajectory or branchTrajectory.
   */
  openForAppend(caller: Caller, open: OpenRequest, create?: TrajectoryCreation): Promise<Grant>;

  /**
   * W7: commits batches of any number of trajectories together. All batches of one trajectory are in one transaction.
   * Each batch is decided by `decideAppend` from the locked row, in the order given. A rejected batch does not affect
   * other trajectories, but later batches of its own trajectory are rejected with the same error, unless they are
   * `independent`.
   * `wait` applies to a trajectory whose row another transaction holds:
   * - `never`: its outcome is `busy`, and nothing of it is written.
   * - `bounded`: the call waits a few seconds at most, then throws DATABASE_UNAVAILABLE.
   * The outcome `apart` means that other trajectories of the call were committed, and nothing of this one was written,
   * because it takes longer: append it in a call without those. The batches of one trajectory have it together.
   * If the call throws, nothing was written, except that after DATABASE_UNAVAILABLE this is unknown.
   */
  append(batches: readonly AppendBatch[], wait: 'never' | 'bounded'): Promise<AppendOutcome[]>;

  /**
   * W14: creates the trajectories that do not exist and appends their batches, in order, in one transaction. Returns an
   * outcome for each batch; undefined if its trajectory exists, and nothing of the batch was written. If one fails or
   * is rejected, nothing is created or written. Waits only briefly for locks. Errors: as `create` of openForAppend, and
   * those of `decideAppend`.
   */
  appendToNew(batches: readonly CreatingBatch[]): Promise<(AppendOutcome | undefined)[]>;

  /**
   * W10: attaches a state to a stored step. Errors: TRAJECTORY_NOT_FOUND, WRITER_FENCED, STEP_NOT_FOUND (also for an
   * inherited step), STATE_NOT_FOUND, STATE_CONFLICT.
   */
  attachState(caller: Caller, attaching: NewAttachedState): Promise<{ state: StateRef; duplicate: boolean }>;
}

export interface Grant {
  readonly trajectory: Trajectory;
  readonly epoch: bigint;
  /** Whether the grant has fenced a writer of another principal (N3). */
  readonly tookOver: boolean;
}

export interface AppendBatch extends Writing {
  readonly caller: Caller;
  readonly ref: TrajectoryRef;
  /** If set, the row must have this uid (W8). Streams need none, because their epoch fences them. */
  readonly uid: string | undefined;
  /** Whether the batch is decided even if an earlier one of its trajectory was rejected. Default: false. */
  readonly independent?: boolean;
  /** Bytes of inline states, each digest once. */
  readonly states: readonly NewState[];
}

/** The first batch of a trajectory, which creates it. */
export type CreatingBatch = Omit<AppendBatch, 'ref'> & { readonly create: TrajectoryCreation };

export type AppendOutcome =
  | {
      readonly kind: 'committed';
      /** End of the trajectory after the batch. */
      readonly nextStepNumber: bigint;
      readonly uid: string;
      /** The epoch that the writer of the batch was granted. */
      readonly epoch: bigint | undefined;
      /** Whether this has fenced a writer of another principal (N3). Default: false. */
      readonly tookOver?: boolean;
      readonly commitTime: Instant;
      readonly duplicates: number;
      /** Steps in rows that were compressed before the commit, which wait for no merge. Default: 0. */
      readonly compressedSteps?: number;
      readonly status: TrajectoryStatus;
      readonly statusMessage: string;
      readonly sealTime: Instant | undefined;
    }
  | { readonly kind: 'refused'; readonly error: AnabranchError }
  | { readonly kind: 'busy' }
  | { readonly kind: 'apart' };

/** The state must be stored already, unless `data` is set. The store determines its size. */
export interface NewAttachedState extends Pick<StateRef, 'name' | 'digest' | 'mediaType'> {
  readonly trajectoryId: string;
  readonly uid: string | undefined;
  readonly writerEpoch: bigint | undefined;
  readonly stepNumber: bigint;
  readonly data: Uint8Array | undefined;
}

export interface MergeStore {
  /**
   * Merges the segments in which steps were appended into few compressed ones. What is read does not change. One call
   * replaces about 1 MiB at most, in one transaction. Several instances may merge the same trajectories. Returns the
   * requests that are not finished; a trajectory that does not exist is finished.
   */
  mergeSteps(requests: readonly MergeRequest[]): Promise<MergeRequest[]>;

  /**
   * Looks at the next trajectories in order of key. Returns those that have steps which were not merged, and have not
   * grown for `idleSeconds`. `next` is undefined after the last trajectory.
   */
  findUnmerged(
    after: TrajectoryRef | undefined,
    limit: number,
    idleSeconds: number,
  ): Promise<{ readonly found: TrajectoryRef[]; readonly next: TrajectoryRef | undefined }>;
}

export interface MergeRequest {
  readonly ref: TrajectoryRef;
  /** Also merges the last rows, though they do not fill a row: for a trajectory that does not grow. */
  readonly rest: boolean;
  /** How many steps wait to be merged, if that is known. A request that is not finished has those that are left. */
  readonly steps?: number;
}
