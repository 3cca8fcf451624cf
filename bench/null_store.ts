import type { AppendBatch, AppendOutcome } from '../src/store/contract/append.ts';
import type { Store } from '../src/store/contract/store.ts';
import { wrappedStore } from '../test/support/wrapped_store.ts';

/** A store that acknowledges appends at once and stores nothing, to measure the cost of everything above the store. */
export function nullStore(store: Store): Store {
  const commitTime = BigInt(Date.now()) * 1_000_000n;
  const acknowledge = ({ steps }: AppendBatch): AppendOutcome => ({
    kind: 'committed',
    nextStepNumber: (steps.at(-1)?.stepNumber ?? -1n) + 1n,
    uid: '',
    epoch: undefined,
    commitTime,
    duplicates: 0,
    status: 'RUNNING',
    statusMessage: '',
    sealTime: undefined,
  });
  return wrappedStore(store, { append: async (batches) => batches.map(acknowledge) });
}
