import type { Caller } from '../../domain/caller.ts';
import type { App } from '../app.ts';

export interface ReadStatesArgs {
  readonly trajectoryId: string;
  readonly startStepNumber: bigint;
  /** Undefined or beyond the end: the end as it is when the call begins. */
  readonly endStepNumber: bigint | undefined;
  /** Empty means `env`. */
  readonly name: string;
  /** Every k-th of those found, the first included; 0 and 1 mean all. */
  readonly every: bigint;
}

/** Pieces of states of one owner's steps, in order; at most 256 KiB of bytes. */
export interface StatesRead {
  readonly trajectoryId: string;
  readonly pieces: readonly StatePiece[];
}

/** A piece with offset 0 begins a state; offset + data.length = size ends it. */
export interface StatePiece {
  readonly stepNumber: bigint;
  readonly digest: string;
  readonly mediaType: string;
  readonly size: number;
  readonly offset: number;
  readonly data: Uint8Array;
}

/** S5. Errors: TRAJECTORY_NOT_FOUND, RANGE_BEYOND_END, TRAJECTORY_DELETED, STATE_CORRUPT. */
// biome-ignore lint/correctness/useYield: being written
export async function* readStates(
  _app: App,
  _caller: Caller,
  _args: ReadStatesArgs,
): AsyncGenerator<StatesRead, void, undefined> {
  throw new Error('being written');
}
