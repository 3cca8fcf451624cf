import { useEffect, useState } from 'preact/hooks';
import { isTransient, messageOf } from './errors.ts';

/** Waits before the first and before every later reconnect. */
const [FIRST_WAIT_MS, LONGEST_WAIT_MS] = [250, 5_000];
/** The server sends something at least every 15 seconds. */
const SILENCE_MS = 45_000;

export interface WatchEvents {
  readonly signal: AbortSignal;
  /** The connection was lost. Another one is opened. */
  readonly onCut: () => void;
}

/**
 * Repeats a stream until the signal is aborted. `open` begins with a snapshot each time. Throws errors that a repetition
 * cannot mend.
 */
export async function* repeated<M>(
  open: (signal: AbortSignal) => AsyncIterable<M>,
  { signal, onCut }: WatchEvents,
): AsyncGenerator<M | 'begin', void, undefined> {
  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    const call = new AbortController();
    let silence = setTimeout(() => call.abort(), SILENCE_MS);
    try {
      yield 'begin';
      for await (const message of open(AbortSignal.any([signal, call.signal]))) {
        clearTimeout(silence);
        wait = FIRST_WAIT_MS;
        yield message;
        silence = setTimeout(() => call.abort(), SILENCE_MS);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!isTransient(error) && !call.signal.aborted) throw error;
    } finally {
      clearTimeout(silence);
      call.abort();
    }
    onCut();
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, wait);
      signal.addEventListener('abort', () => resolve(clearTimeout(timer)), { once: true });
    });
    wait = Math.min(LONGEST_WAIT_MS, wait * 2);
  }
}

export interface Watched<T> {
  readonly value: T | undefined;
  readonly error: string | undefined;
  /** True while the connection is lost. The value is old then. */
  readonly stale: boolean;
}

/** Watches a value while the tab is visible. Its last value stays while the connection is lost, marked as stale. */
export function useWatched<T>(
  key: string,
  watch: (events: WatchEvents & { onCaughtUp(): void }) => AsyncIterable<T>,
): Watched<T> {
  const [state, setState] = useState<Watched<T>>({ value: undefined, error: undefined, stale: false });
  const shown = useVisible();
  useEffect(() => {
    if (!shown) return;
    const stop = new AbortController();
    const stale = (now: boolean) => setState((last) => (last.stale === now ? last : { ...last, stale: now }));
    const events = { signal: stop.signal, onCut: () => stale(true), onCaughtUp: () => stale(false) };
    const follow = async () => {
      for await (const value of watch(events)) setState({ value, error: undefined, stale: false });
    };
    follow().catch((error) => {
      if (!stop.signal.aborted) setState((last) => ({ ...last, error: messageOf(error), stale: true }));
    });
    return () => stop.abort();
  }, [key, shown]);
  return state;
}

/** Hidden tabs hold no connection: a browser opens only six to a server. */
function useVisible(): boolean {
  const [shown, setShown] = useState(document.visibilityState === 'visible');
  useEffect(() => {
    const read = () => setShown(document.visibilityState === 'visible');
    document.addEventListener('visibilitychange', read);
    return () => document.removeEventListener('visibilitychange', read);
  }, []);
  return shown;
}
