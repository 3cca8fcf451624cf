import type { Store } from '../../src/store/contract/store.ts';

/** Collects states that nothing refers to, whatever their age. Times are compared by the millisecond: those of this one are not older than it. */
export async function collectUnused(store: Store): Promise<void> {
  const begun = Date.now();
  while (Date.now() <= begun + 1) await new Promise(setImmediate);
  await store.collectStates(0, 10_000);
}
