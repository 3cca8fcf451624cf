import type { Store } from '../store/contract/store.ts';

/**
 * Distributes the hints of the store: one subscription serves all followers and watchers. A hint says only that the
 * listener should read again.
 */
export interface ChangeHub {
  /** Subscribes to hints for a trajectory or run. Returns a function that unsubscribes. */
  subscribe(key: bigint, listener: () => void): () => void;
  /**
   * Subscribes to all hints, with the key of what changed; undefined if anything may have. Returns a function that
   * unsubscribes.
   */
  subscribeAll(listener: (key?: bigint) => void): () => void;
  /** Sends a hint for a trajectory or run that this process has changed. */
  announce(key: bigint): void;
  /** Number of subscriptions. */
  readonly listeners: number;
  close(): void;
}

export function createChangeHub(store: Pick<Store, 'onChange'>): ChangeHub {
  const byKey = new Map<bigint, Set<() => void>>();
  const forAll = new Set<(key?: bigint) => void>();
  let listeners = 0;

  const announce = (key: bigint | undefined): void => {
    for (const listener of forAll) listener(key);
    if (key !== undefined) {
      for (const listener of byKey.get(key) ?? []) listener();
      return;
    }
    for (const own of byKey.values()) for (const listener of own) listener();
  };
  const unsubscribe = store.onChange(announce);

  return {
    subscribe(key, listener) {
      const own = () => listener();
      const all = byKey.get(key) ?? new Set();
      byKey.set(key, all.add(own));
      listeners += 1;
      return () => {
        if (!all.delete(own)) return;
        listeners -= 1;
        if (all.size === 0 && byKey.get(key) === all) byKey.delete(key);
      };
    },
    subscribeAll(listener) {
      const own = (key?: bigint) => listener(key);
      forAll.add(own);
      return () => void forAll.delete(own);
    },
    announce,
    get listeners() {
      return listeners + forAll.size;
    },
    close: unsubscribe,
  };
}
