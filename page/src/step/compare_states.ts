import { readState, type StateAt } from '../api.ts';
import type { Change } from './patch.ts';
import { stateText } from './state_text.ts';

/** A comparison that takes longer is given up. */
const MOST_MS = 10_000;

/** A state to compare. */
export interface Compared extends StateAt {
  readonly mediaType: string;
}

/** Returns the changes between two states; undefined if one is no JSON. Errors: the comparison takes too long. */
export async function compareStates(
  before: Compared,
  after: Compared,
  signal: AbortSignal,
): Promise<Change[] | undefined> {
  const textOf = async (state: Compared) => stateText(state.mediaType, await readState(state, signal));
  const texts = await Promise.all([textOf(before), textOf(after)]);
  // The page in a file has no worker.
  if (typeof Worker === 'undefined') return (await import('./difference.ts')).differenceOf(...texts);
  const worker = new Worker(new URL('./difference_worker.ts', import.meta.url), { type: 'module' });
  const ends = AbortSignal.any([signal, AbortSignal.timeout(MOST_MS)]);
  const { promise, resolve, reject } = Promise.withResolvers<Change[] | undefined>();
  worker.onmessage = ({ data }: MessageEvent<Change[] | undefined>) => resolve(data);
  worker.onerror = () => reject(new Error('The states could not be compared.'));
  ends.addEventListener('abort', () =>
    reject(signal.aborted ? signal.reason : new Error('The states are too large to be compared here.')),
  );
  worker.postMessage(texts);
  return promise.finally(() => worker.terminate());
}
