import type { Digest } from '../../../domain/ids.ts';
import { chunksOf, padded } from '../statement_shapes.ts';
import type { Transaction } from '../transaction.ts';
import { bindDigest, readDigest } from '../values.ts';

/**
 * Collects the states whose references a transaction deletes. The last statements of the transaction update them, in
 * the lock order of appends. Appends that refer to one of them thus wait only for the end of the transaction.
 */
export class Unreferencing {
  readonly #tx: Transaction;
  readonly #namespaces = new Map<string, Set<Digest>>();

  constructor(tx: Transaction) {
    this.#tx = tx;
  }

  add(references: readonly { readonly namespace: string; readonly digest: Uint8Array }[]): void {
    for (const { namespace, digest } of references) {
      const digests = this.#namespaces.get(namespace) ?? new Set();
      this.#namespaces.set(namespace, digests.add(readDigest(digest)));
    }
  }

  /** Marks the states as unreferenced. The collector looks for remaining references (see `STATES`). */
  async write(): Promise<void> {
    for (const [namespace, digests] of [...this.#namespaces].sort(([a], [b]) => (a < b ? -1 : 1))) {
      for (const some of chunksOf([...digests].sort())) await this.#change(namespace, some);
    }
  }

  async #change(namespace: string, digests: readonly Digest[]): Promise<void> {
    await this.#tx.engine.findStates(this.#tx.db, namespace, digests, 'lock');
    await this.#tx.db
      .updateTable('states')
      .set((eb) => ({ referenced: 0, version: eb('version', '+', 1n) }))
      .where('namespace', '=', namespace)
      .where('digest', 'in', padded(digests).map(bindDigest))
      .execute();
  }
}
