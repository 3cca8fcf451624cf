import type { Digest } from '../../domain/ids.ts';
import type { StepPruning } from '../../domain/pruning.ts';
import type { RestoredState } from '../../domain/step.ts';
import type { TrajectoryRef } from '../../domain/trajectory.ts';

/**
 * States by digest, once per namespace (S1). The contract has digests and bytes only; the encoding and layout of the
 * bytes are internal.
 */
export interface StateStore {
  /**
   * S4: starts the upload of a state. The state cannot be found before `finish`. Equal pieces of `base`, if it is
   * stored, are not stored again.
   */
  putState(namespace: string, base?: Digest): StateUpload;

  /**
   * Returns which of the digests are stored, with sizes, in the order given. With `renew`, restarts their retention
   * time (S2).
   */
  findStates(namespace: string, digests: readonly Digest[], renew: boolean): Promise<StateInfo[]>;

  /** Returns the bytes of a state of steps that this process has stored lately, if it still has them. */
  heldState(namespace: string, digest: Digest): Uint8Array | undefined;

  /** Returns which of the digests are stored, and what it takes to read them. Does not renew their retention time. */
  locateStates(namespace: string, digests: readonly Digest[]): Promise<ReadonlyMap<Digest, LocatedState>>;

  /**
   * Returns the verified bytes of states that are not stored in chunks, in one statement (S3). Omits all others. The
   * caller bounds the sum of their `decodedBytes`. Errors: STATE_CORRUPT.
   */
  readWholeStates(namespace: string, digests: readonly Digest[]): Promise<ReadonlyMap<Digest, Uint8Array>>;

  /**
   * Returns bytes of a state from `offset` on: up to the end of the stored chunk, about 256 KiB at most, and none at
   * the end. A hash of the chunk is verified (S3). `last` shortens the following reads of the same state and of
   * states that are stored as changes of it. Errors: STATE_NOT_FOUND, STATE_CORRUPT.
   */
  readState(namespace: string, digest: Digest, offset: number, last?: RestoredState): Promise<Uint8Array>;

  /**
   * S13: removes states of own steps of a trajectory, in short transactions. Leaves out states and steps that do not
   * exist, and damaged rows.
   */
  pruneStates(namespace: string, ref: TrajectoryRef, steps: readonly StepPruning[]): Promise<void>;

  /**
   * S2: deletes at most `limit` unreferenced states that were last renewed more than `ttlHours` ago, and the remains of
   * broken uploads. Returns how many states. Never deletes a state that a concurrent append refers to.
   */
  collectStates(ttlHours: number, limit: number): Promise<number>;
}

export interface StateInfo {
  readonly digest: Digest;
  readonly size: number;
}

export interface LocatedState extends StateInfo {
  /** Bytes of the state and of the states that it is stored as changes of. Undefined if it is stored in chunks. */
  readonly decodedBytes: number | undefined;
}

/**
 * One upload, in pieces of any size. Bytes are copied and stored in chunks of 256 KiB, so that memory stays bounded.
 */
export interface StateUpload {
  write(piece: Uint8Array): Promise<void>;
  /** Returns the digest of the written bytes. Nothing can be written afterwards. */
  digest(): Digest;
  /**
   * Stores the state under its digest, and resolves when it is durable. If the state was stored already, it is renewed
   * and the new bytes are deleted.
   */
  finish(): Promise<StateInfo>;
  /** Deletes the written bytes. Idempotent, and without effect after `finish`. */
  abort(): Promise<void>;
}
