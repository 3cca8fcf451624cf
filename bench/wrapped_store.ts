import type { Store } from '../src/store/contract/store.ts';

/** A store whose methods are those of another one, apart from `own`; for every call alike. */
export function wrappedStore(store: Store, own: Partial<Store>): Store {
  const wrapped: Store = Object.assign(Object.create(store) as Store, { within: () => wrapped }, own);
  return wrapped;
}
