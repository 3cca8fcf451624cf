import { expect } from 'vitest';
import type { StorageFault } from '../../src/domain/verification.ts';
import type { Store } from '../../src/store/contract/store.ts';

/** Returns everything that is wrong with a database. */
export async function faultsOf(store: Store): Promise<StorageFault[]> {
  const faults: StorageFault[] = [];
  for await (const progress of store.verify()) faults.push(...progress.faults);
  return faults;
}

/** V1: expects that all rows of the database fit together. */
export async function expectVerified(store: Store): Promise<void> {
  expect(await faultsOf(store)).toEqual([]);
}
