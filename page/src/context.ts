import { createContext } from 'preact';
import { useContext, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { type Address, changedAddress, parseAddress, type Query } from './address.ts';
import { readShown, writeShown } from './address_bar.ts';
import type { Api } from './api.ts';
import { messageOf } from './errors.ts';
import { RECONNECTED } from './watch/reconnected.ts';

export interface Context {
  readonly api: Api;
  /** What the caller may do here. */
  readonly role: Role;
  readonly address: Address;
  /** Shows another address. `replace` adds no entry to the history, as for a position that moves. */
  go(to: string, options?: { readonly replace?: boolean }): void;
  /** Changes values of the query. */
  set(changes: Query, options?: { readonly replace?: boolean }): void;
}

const PageContext = createContext<Context | undefined>(undefined);
export const ContextProvider = PageContext.Provider;

export function usePage(): Context {
  const context = useContext(PageContext);
  if (context === undefined) throw new Error('usePage() needs a ContextProvider');
  return context;
}

/** Returns the address of the window, and functions that change it. */
export function useAddress(): Pick<Context, 'address' | 'go' | 'set'> {
  const [at, setAt] = useState(readShown());
  useLayoutEffect(() => {
    const read = () => setAt(readShown());
    addEventListener('popstate', read);
    return () => removeEventListener('popstate', read);
  }, []);
  return useMemo(() => {
    const go: Context['go'] = (to, { replace = false } = {}) => {
      if (to === readShown()) return;
      writeShown(to, { replace });
      setAt(to);
    };
    const set: Context['set'] = (changes, options) => {
      const [path = '', search = ''] = readShown().split(/(?=\?)/);
      go(changedAddress(path, search, changes), options);
    };
    const [path = '', search = ''] = at.split(/(?=\?)/);
    return { address: parseAddress(path, search), go, set };
  }, [at]);
}

export interface Loaded<T> {
  /** The newest value that was loaded. It stays while another one is loaded. */
  readonly value: T | undefined;
  /** True while the value is that of an earlier key: what shows it has `aria-busy` then. */
  readonly isOld: boolean;
  readonly error: string | undefined;
  /** Loads again, for example after a change. */
  reload(): void;
}

/** A value and an error, each with the key that it belongs to. */
interface Outcome<T> {
  readonly value?: { readonly of: string; readonly is: T };
  readonly error?: { readonly of: string; readonly is: string };
}

function outcomeFor<T>({ value, error }: Outcome<T>, key: string): Pick<Loaded<T>, 'value' | 'isOld' | 'error'> {
  return {
    value: value?.is,
    isOld: value !== undefined && value.of !== key,
    error: error?.of === key ? error.is : undefined,
  };
}

/**
 * Loads a value whenever `key` changes. The load of an earlier key is cancelled. A load that failed is repeated when a
 * lost connection is open again.
 */
export function useLoaded<T>(key: string, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<Outcome<T>>({});
  const [round, setRound] = useState(0);
  useLayoutEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    const again = () => setRound((last) => last + 1);
    let [failed, reconnected] = [false, false];
    const onReconnected = () => {
      reconnected = true;
      if (failed) again();
    };
    addEventListener(RECONNECTED, onReconnected, { signal });
    load(signal).then(
      (value) => signal.aborted || setState({ value: { of: key, is: value } }),
      (error) => {
        if (signal.aborted) return;
        failed = true;
        if (reconnected) again();
        else setState((last) => ({ ...last, error: { of: key, is: messageOf(error) } }));
      },
    );
    return () => stop.abort();
    // `load` is a new function at every rendering; `key` identifies what it loads.
  }, [key, round]);
  return { ...outcomeFor(state, key), reload: () => setRound((last) => last + 1) };
}

/**
 * Loads a value when `key` changes, and again when `version` changes. A new version waits for a load that is under way,
 * so that values that change all the time are shown, too. A load that failed is repeated when a lost connection is open
 * again.
 */
export function useLatest<T>(
  key: string,
  version: string,
  load: (signal: AbortSignal) => Promise<T>,
): Omit<Loaded<T>, 'reload'> {
  const [state, setState] = useState<Outcome<T>>({});
  const latest = useRef({ version, load });
  latest.current = { version, load };
  const again = useRef<() => void>(() => undefined);
  useLayoutEffect(() => {
    const stop = new AbortController();
    let [busy, failed, reconnected] = [false, false, false];
    const run = async () => {
      if (busy) return;
      busy = true;
      let done: string | undefined;
      while (!stop.signal.aborted && done !== latest.current.version) {
        done = latest.current.version;
        reconnected = false;
        failed = false;
        try {
          const value = await latest.current.load(stop.signal);
          if (!stop.signal.aborted) setState({ value: { of: key, is: value } });
        } catch (error) {
          failed = true;
          if (reconnected) done = undefined;
          else if (!stop.signal.aborted) setState((last) => ({ ...last, error: { of: key, is: messageOf(error) } }));
        }
      }
      busy = false;
    };
    const onReconnected = () => {
      reconnected = true;
      if (failed) void run();
    };
    addEventListener(RECONNECTED, onReconnected, { signal: stop.signal });
    again.current = () => void run();
    void run();
    return () => stop.abort();
  }, [key]);
  useLayoutEffect(() => again.current(), [version]);
  return outcomeFor(state, key);
}
