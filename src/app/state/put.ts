import type { Caller } from '../../domain/caller.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import type { App } from '../app.ts';

export interface PutStateArgs {
  /** The digest as the first frame states it; empty or undefined: not stated. */
  readonly digest: string | undefined;
  /** The bytes, in pieces of any size; asked for one at a time, so that memory stays bounded. */
  readonly chunks: AsyncIterable<Uint8Array>;
}

/** S4: durable when this resolves. Errors: DIGEST_MISMATCH, INVALID_REQUEST (over 256 MiB), STORAGE_FULL. */
export async function putState(_app: App, _caller: Caller, _args: PutStateArgs): Promise<StateInfo> {
  throw new Error('being written');
}
