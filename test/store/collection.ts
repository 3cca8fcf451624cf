import type { Store } from '../../src/store/contract/store.ts';

/** Waits until everything written before is older than now: ages are compared in milliseconds. */
export async function laterByTheClock(): Promise<void> {
  const begun = Date.now();
  while (Date.now() <= begun + 1) await new Promise(setImmediate);
}

/** Collects states without references, whatever their age. */
export async function collectUnused(store: Store): Promise<void> {
  await laterByTheClock();
  await store.collectStates(0, 10_000);
}
