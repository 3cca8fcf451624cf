import type { LocatedState, StateStore } from '../store/contract/state.ts';

/** Bytes that one statement reads, unless one state alone has more, and how many states. */
const BATCH_BYTES = 1024 * 1024;
const BATCH_STATES = 256;

/**
 * Returns states in order with their verified bytes, several of them in one statement. The bytes are undefined if the
 * state is stored in chunks, or was deleted meanwhile. Errors: STATE_CORRUPT.
 */
export async function* readTogether(
  store: Pick<StateStore, 'readWholeStates'>,
  namespace: string,
  states: readonly LocatedState[],
): AsyncGenerator<readonly [LocatedState, Uint8Array | undefined], void, undefined> {
  for (let at = 0; at < states.length; ) {
    const batch = batchFrom(states, at);
    at += batch.length;
    const whole = batch.filter(({ decodedBytes }) => decodedBytes !== undefined).map(({ digest }) => digest);
    const found = await store.readWholeStates(namespace, whole);
    for (const state of batch) yield [state, found.get(state.digest)];
  }
}

function batchFrom(states: readonly LocatedState[], begin: number): readonly LocatedState[] {
  let bytes = 0;
  let end = begin;
  while (end < states.length && end - begin < BATCH_STATES) {
    bytes += states[end]!.decodedBytes ?? 0;
    if (bytes > BATCH_BYTES && end > begin) break;
    end += 1;
  }
  return states.slice(begin, end);
}
