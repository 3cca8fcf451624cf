import type { Digest } from '../src/domain/ids.ts';
import { createStateHasher } from '../src/domain/state_digest.ts';
import type { AppendBatch, AppendOutcome } from '../src/store/contract/append.ts';
import type { StateInfo, StateUpload } from '../src/store/contract/state.ts';
import type { Store } from '../src/store/contract/store.ts';
import { wrappedStore } from '../test/support/wrapped_store.ts';

/** A store that acknowledges appends and states at once and stores nothing, to measure the cost of all above it. */
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
  return wrappedStore(store, {
    append: async (batches) => batches.map(acknowledge),
    putState: () => new NullUpload(),
  });
}

/** Hashes the bytes of a state, because the service compares the digest with the one that the client sent. */
class NullUpload implements StateUpload {
  readonly #hasher = createStateHasher();
  #digest: Digest | undefined;
  #size = 0;

  async write(piece: Uint8Array): Promise<void> {
    this.#hasher.update(piece);
    this.#size += piece.length;
  }

  digest(): Digest {
    this.#digest ??= this.#hasher.digest();
    return this.#digest;
  }

  async finish(): Promise<StateInfo> {
    return { digest: this.digest(), size: this.#size };
  }

  async abort(): Promise<void> {}
}
