import type { Change, SeriesChange } from '../domain/change.ts';
import type { Store } from '../store/contract/store.ts';

/**
 * Distributes the hints of the store: one subscription serves all followers and watchers. A hint says only that the
 * listener should read again.
 */
export interface ChangeHub {
  /** Subscribes to hints for a trajectory or run. Returns a function that unsubscribes. */
  subscribe(key: bigint, listener: () => void): () => void;
  /**
   * Subscribes to all hints for trajectories and runs, with the key of what changed; undefined if anything may have.
   * Returns a function that unsubscribes.
   */
  subscribeAll(listener: (key?: bigint) => void): () => void;
  /**
   * Subscribes to hints for metric series; undefined if anything may have changed. Returns a function that
   * unsubscribes.
   */
  subscribeSeries(listener: (change: SeriesChange | undefined) => void): () => void;
  /** Sends a hint for a trajectory or run that this process has changed. */
  announce(key: bigint): void;
  /** Number of subscriptions. */
  readonly listeners: number;
  close(): void;
}

export function createChangeHub(store: Pick<Store, 'onChange'>): ChangeHub {
  const byKey = new Map<bigint, Set<() => void>>();
  const forAll = new Set<(key?: bigint) => void>();
  const forSeries = new Set<(change: SeriesChange | undefined) => void>();
  let listeners = 0;

  const announce = (key: Change | undefined): void => {
    if (typeof key === 'object' || key === undefined) for (const listener of forSeries) listener(key);
    if (typeof key === 'object') return;
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
    subscribeSeries(listener) {
      const own = (change: SeriesChange | undefined) => listener(change);
      forSeries.add(own);
      return () => void forSeries.delete(own);
    },
    announce,
    get listeners() {
      return listeners + forAll.size + forSeries.size;
    },
    close: unsubscribe,
  };
}
