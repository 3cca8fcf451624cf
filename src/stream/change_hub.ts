import type { Store } from '../store/contract/store.ts';

/**
 * Tells followers that a trajectory may have changed: shares one subscription to the hints of the store among all
 * followers. A hint says no more than "read again by number".
 */
export interface ChangeHub {
  /** Returns how to stop. */
  subscribe(key: bigint, listener: () => void): () => void;
  /** Every hint there is. Returns how to stop. */
  subscribeAll(listener: () => void): () => void;
  /** Hints at a trajectory whose change this process made itself. */
  announce(key: bigint): void;
  /** Listeners there are now. */
  readonly listeners: number;
  close(): void;
}

export function createChangeHub(store: Pick<Store, 'onChange'>): ChangeHub {
  const byKey = new Map<bigint, Set<() => void>>();
  const ofAll = new Set<() => void>();
  let listeners = 0;

  const announce = (key: bigint | undefined): void => {
    for (const listener of ofAll) listener();
    if (key !== undefined) {
      for (const listener of byKey.get(key) ?? []) listener();
      return;
    }
    for (const some of byKey.values()) for (const listener of some) listener();
  };
  const stop = store.onChange(announce);

  return {
    subscribe(key, listener) {
      const own = () => listener();
      const some = byKey.get(key) ?? new Set();
      byKey.set(key, some.add(own));
      listeners += 1;
      return () => {
        if (!some.delete(own)) return;
        listeners -= 1;
        if (some.size === 0 && byKey.get(key) === some) byKey.delete(key);
      };
    },
    subscribeAll(listener) {
      const own = () => listener();
      ofAll.add(own);
      return () => void ofAll.delete(own);
    },
    announce,
    get listeners() {
      return listeners + ofAll.size;
    },
    close: stop,
  };
}
