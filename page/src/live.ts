import { useLayoutEffect, useState } from 'preact/hooks';
import { messageOf } from './errors.ts';
import type { WatchEvents } from './watch/watch.ts';

export interface Watched<T> {
  readonly value: T | undefined;
  /** True while the value is that of an earlier key: what shows it has `aria-busy` then. */
  readonly isOld: boolean;
  /** Why the watch has ended. The value is the last one then. */
  readonly error: string | undefined;
  /** True while the connection is lost. The value is old then. */
  readonly stale: boolean;
}

/** Watches a value while the tab is visible. Its last value stays while the connection is lost, marked as stale. */
export function useWatched<T>(
  key: string,
  watch: (events: WatchEvents & { onCaughtUp(): void }) => AsyncIterable<T>,
): Watched<T> {
  const [state, setState] = useState<Omit<Watched<T>, 'isOld'> & { readonly of?: string }>({
    value: undefined,
    error: undefined,
    stale: false,
  });
  const shown = useVisible();
  useLayoutEffect(() => {
    if (!shown) return;
    const stop = new AbortController();
    const stale = (now: boolean) => setState((last) => (last.stale === now ? last : { ...last, stale: now }));
    const events = { signal: stop.signal, onCut: () => stale(true), onCaughtUp: () => stale(false) };
    const follow = async () => {
      for await (const value of watch(events)) setState({ of: key, value, error: undefined, stale: false });
    };
    follow().catch((error) => {
      if (!stop.signal.aborted) setState((last) => ({ ...last, error: messageOf(error), stale: false }));
    });
    return () => stop.abort();
  }, [key, shown]);
  const { of, ...watched } = state;
  return { ...watched, isOld: watched.value !== undefined && of !== key };
}

/** Hidden tabs hold no connection: a browser opens only six to a server. */
export function useVisible(): boolean {
  const [shown, setShown] = useState(document.visibilityState === 'visible');
  useLayoutEffect(() => {
    const read = () => setShown(document.visibilityState === 'visible');
    document.addEventListener('visibilitychange', read);
    return () => document.removeEventListener('visibilitychange', read);
  }, []);
  return shown;
}
