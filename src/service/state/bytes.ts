import { AnabranchError, stateCorrupt } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import { createStateHasher } from '../../domain/state_digest.ts';
import type { RestoredState } from '../../domain/step.ts';
import type { StateInfo, StateStore } from '../../store/contract/state.ts';

/** Returns bytes of a state from `offset` on: at least one, unless the state ends there. */
export type ReadState = (offset: number) => Promise<Uint8Array>;

/** Reads a state with a row of its own. Readers with the same `last` decode each state of a chain once. */
export function rowReader(
  store: Pick<StateStore, 'readState'>,
  namespace: string,
  { digest }: StateInfo,
  last: RestoredState = {},
): ReadState {
  return (offset) => store.readState(namespace, digest, offset, last);
}

/** Reads a state whose bytes are at hand. */
export function smallReader(data: Uint8Array): ReadState {
  return async (offset) => data.subarray(offset);
}

/**
 * Returns the bytes [from, to) of a state in pieces of at most 256 KiB, and reads them on demand. The store verifies
 * the chunks that it reads. A whole state is hashed as well, and its last piece is returned only if the digest matches
 * (S3). Errors: STATE_NOT_FOUND, STATE_CORRUPT.
 */
export async function* stateBytes(
  read: ReadState,
  { digest, size }: StateInfo,
  from: number,
  to: number,
): AsyncGenerator<Uint8Array, void, undefined> {
  const hasher = from === 0 && to === size ? createStateHasher() : undefined;
  for (let at = from; at < to; ) {
    const stored = await read(at);
    if (stored.length === 0) throw stateCorrupt(digest);
    for (let cut = 0; cut < stored.length && at < to; ) {
      const piece = stored.subarray(cut, cut + Math.min(LIMITS.chunkBytes, to - at));
      cut += piece.length;
      at += piece.length;
      hasher?.update(piece);
      if (at === to && hasher !== undefined && hasher.digest() !== digest) throw stateCorrupt(digest);
      yield piece;
    }
  }
}

export function isMissing(error: unknown): error is AnabranchError {
  return error instanceof AnabranchError && error.reason === 'STATE_NOT_FOUND';
}
