import type { Digest } from '../../../domain/ids.ts';
import type { Db, Engine, Tx } from '../kit/engine.ts';
import type { Sums } from '../kit/running_sums.ts';
import type { SegmentRow } from '../kit/tables/steps.ts';
import type { KnownHeads } from './append/known_heads.ts';

/** The rows of stored states, for transactions that refer to them. */
export interface StateRows {
  /**
   * Returns those of the states that are stored. `digests` must be distinct.
   * - `lock` locks them for writing, in order of digest.
   * - `refer` locks nothing, and makes `outwaitReferrers` wait for this transaction.
   */
  find(tx: Tx, namespace: string, digests: readonly Digest[], purpose: 'refer' | 'lock'): Promise<FoundState[]>;

  /**
   * Locks states for writing, in order of digest, and marks them as referenced. Returns the digests that are stored.
   */
  refer(tx: Tx, namespace: string, digests: readonly Digest[]): Promise<Digest[]>;

  /**
   * Waits until every transaction has ended that has called `find` with `refer` so far. Returns false if one has not
   * ended after some seconds.
   */
  outwaitReferrers(db: Db): Promise<boolean>;
}

/** A stored state without its bytes. */
export interface FoundState {
  readonly digest: Digest;
  readonly size: number;
  readonly referenced: boolean;
}

/** Appends at the least cost, for decisions that need no other rows than the heads. */
export interface Appends {
  /**
   * Appends steps to trajectories, in a transaction. Locks each row, compares it with `seen`, and appends to those that
   * are equal. Returns the commit time by row key. Nothing is written for a trajectory that is left out, because its
   * row has changed or is locked.
   *
   * An engine that runs one transaction at a time calls `decide` within the transaction, with the commit time, and
   * `committed` together with COMMIT (see `AfterCommit`). So heads are what the transaction before has left.
   */
  toSeen(
    decide: (now: string) => readonly SeenAppend[],
    committed: (times: ReadonlyMap<bigint, string>) => void,
  ): Promise<ReadonlyMap<bigint, string>>;
}

/** New steps of a trajectory. */
export interface SeenAppend {
  readonly seen: SeenHead;
  /** End and sums of the trajectory after them. */
  readonly end: bigint;
  readonly sums: Sums;
  readonly segments: readonly SegmentRow[];
}

/** Columns that a decision to append depends on. All other columns that it reads never change. */
export interface SeenHead {
  readonly tree: bigint;
  readonly key: bigint;
  readonly nextStepNumber: bigint;
  readonly writerEpoch: bigint;
}

export interface StatesEngine extends Engine {
  readonly stateRows: StateRows;
}

export interface AppendsEngine extends StatesEngine {
  readonly appends: Appends;
  readonly known: KnownHeads;
}
