import type { Caller } from '../../domain/caller.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import type { App } from '../app.ts';

export interface GetStateArgs {
  readonly digest: string;
  readonly offset: bigint;
  /** Undefined: to the end. A range beyond the end is cut. */
  readonly length: bigint | undefined;
}

export interface StateChunk {
  /** In the first chunk only. */
  readonly state: StateInfo | undefined;
  /** At most 256 KiB. */
  readonly chunk: Uint8Array;
}

/** S3, S4: at least one chunk, perhaps an empty one. Errors: STATE_NOT_FOUND, RANGE_BEYOND_END, STATE_CORRUPT. */
// biome-ignore lint/correctness/useYield: being written
export async function* getState(
  _app: App,
  _caller: Caller,
  _args: GetStateArgs,
): AsyncGenerator<StateChunk, void, undefined> {
  throw new Error('being written');
}
