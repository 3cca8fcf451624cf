import type { OpenRequest, Writing } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import type { AnabranchError } from '../../domain/errors.ts';
import type { Instant } from '../../domain/instant.ts';
import type { TrajectoryStatus } from '../../domain/lifecycle.ts';
import type { NewState, StateRef } from '../../domain/step.ts';
import type { Trajectory, TrajectoryRef } from '../../domain/trajectory.ts';

export interface AppendStore {
  /** W1: grants the next epoch durably under the row's lock, or refuses and moves nothing. Errors: those of `decideOpen`. */
  openForAppend(caller: Caller, open: OpenRequest): Promise<Grant>;

  /**
   * W7: commits batches of any number of trajectories in one transaction, each decided (`decideAppend`) from the row as it is under its lock, in
   * the order given. A refused batch is refused alone. Batches of one trajectory must stand in their order; after a refused one its later
   * batches are refused likewise.
   *
   * A trajectory whose row another transaction holds: with `wait: 'never'` its outcome is `busy` and nothing of it was written; with `wait:
   * 'bounded'` the call waits for it, a few seconds at most, then throws DATABASE_UNAVAILABLE.
   * If the call throws, nothing of the whole group was written, or (DATABASE_UNAVAILABLE) that is unknown.
   */
  append(batches: readonly AppendBatch[], wait: 'never' | 'bounded'): Promise<AppendOutcome[]>;

  /** W10. Errors: TRAJECTORY_NOT_FOUND, WRITER_FENCED, STEP_NOT_FOUND (also for an inherited step), STATE_NOT_FOUND, STATE_CONFLICT. */
  attachState(
    caller: Caller,
    attaching: AttachedState,
  ): Promise<{ readonly state: StateRef; readonly duplicate: boolean }>;

  /**
   * Calls the listener whenever a trajectory may have grown, been sealed or been deleted, through this process or another: a hint to read again
   * by number, sent after the commit, possibly twice, possibly lost (so poll too). `key` undefined: any may have. Returns how to stop.
   */
  onChange(listener: (key: bigint | undefined) => void): () => void;
}

export interface Grant {
  readonly trajectory: Trajectory;
  readonly epoch: bigint;
}

export interface AppendBatch extends Writing {
  readonly caller: Caller;
  readonly ref: TrajectoryRef;
  /** Where given, the row's uid must be this (W8); a stream's reference is fence enough. */
  readonly uid: string | undefined;
  /** Bytes of states that came inline, each digest once. */
  readonly states: readonly NewState[];
}

export type AppendOutcome =
  | {
      readonly kind: 'committed';
      /** The trajectory's end after the batch. */
      readonly nextStepNumber: bigint;
      readonly commitTime: Instant;
      readonly duplicates: number;
      readonly status: TrajectoryStatus;
      readonly statusMessage: string;
      readonly sealTime: Instant | undefined;
    }
  | { readonly kind: 'refused'; readonly error: AnabranchError }
  | { readonly kind: 'busy' };

export interface AttachedState {
  readonly trajectoryId: string;
  readonly uid: string | undefined;
  readonly writerEpoch: bigint | undefined;
  readonly stepNumber: bigint;
  /** The size is the store's to tell; with `data` the bytes are stored too. */
  readonly name: string;
  readonly digest: string;
  readonly mediaType: string;
  readonly data: Uint8Array | undefined;
}
