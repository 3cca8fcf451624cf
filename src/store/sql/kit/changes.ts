import type { Change } from '../../../domain/change.ts';

/**
 * Listeners of this process for changed trajectories and runs. An exception of a listener is reported as a fault of the
 * service and does not affect other listeners.
 */
export class ChangeListeners {
  readonly #listeners = new Set<(change: Change | undefined) => void>();
  readonly #onFault: (error: unknown) => void;

  constructor(onFault: (error: unknown) => void) {
    this.#onFault = onFault;
  }

  add(listener: (change: Change | undefined) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  tell(change: Change | undefined): void {
    for (const listener of this.#listeners) {
      try {
        listener(change);
      } catch (error) {
        this.#onFault(error);
      }
    }
  }
}
