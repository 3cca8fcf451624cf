import { sql } from 'kysely';
import type { Hint } from '../../../domain/change.ts';
import type { Horizon } from '../../contract/run.ts';
import type { Engine } from './engine.ts';

/**
 * Listeners of this process for changes. An exception of a listener is reported as a fault of the service and does not
 * affect other listeners.
 */
export class ChangeListeners<Change = Hint | undefined> {
  readonly #listeners = new Set<(change: Change) => void>();
  readonly #onFault: (error: unknown) => void;

  constructor(onFault: (error: unknown) => void) {
    this.#onFault = onFault;
  }

  add(listener: (change: Change) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  tell(change: Change): void {
    for (const listener of this.#listeners) {
      try {
        listener(change);
      } catch (error) {
        this.#onFault(error);
      }
    }
  }
}

/** Returns the set of committed changes. Must be read before the rows. */
export async function readHorizon({ db, changes }: Pick<Engine, 'db' | 'changes'>): Promise<Horizon> {
  const { rows } = await sql<{ horizon: string }>`select ${changes.horizon} as horizon`.execute(db);
  return changes.horizonOf(rows[0]!.horizon);
}
