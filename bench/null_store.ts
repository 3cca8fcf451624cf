import type { AppendBatch, AppendOutcome } from '../src/store/contract/append.ts';
import type { Store } from '../src/store/contract/store.ts';
import { wrappedStore } from '../test/support/wrapped_store.ts';

/** The store, but appends are acknowledged at once and stored nowhere: what is left is the cost of everything above it. */
export function nullStore(store: Store): Store {
  const commitTime = BigInt(Date.now()) * 1_000_000n;
  const acknowledge = ({ steps }: AppendBatch): AppendOutcome => ({
    kind: 'committed',
    nextStepNumber: (steps.at(-1)?.stepNumber ?? -1n) + 1n,
    commitTime,
    duplicates: 0,
    status: 'RUNNING',
    statusMessage: '',
    sealTime: undefined,
  });
  return wrappedStore(store, { append: async (batches) => batches.map(acknowledge) });
}
