import type { Store } from '../../src/store/contract/store.ts';

/** Returns the store with some of its methods replaced, within every call: for faults, counts and measurements. */
export function wrappedStore(store: Store, replaced: Partial<Store>): Store {
  const members = Object.getOwnPropertyDescriptors({ within: (): Store => wrapped, ...replaced });
  const wrapped = Object.create(store, members) as Store;
  return wrapped;
}
