/** Thrown by engines when a primary key or unique index rejects a row. */
export class UniqueViolation extends Error {
  override readonly name = 'UniqueViolation';
}

/** Bound on the attempts of a write, because other transactions can cause conflicts repeatedly. */
export const TRIES = 5;

/**
 * Retries a write after a unique violation, so that it finds the conflicting row and reports a specific error. `work`
 * must not keep state between attempts.
 */
export async function againWhenRaced<T>(work: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof UniqueViolation) || attempt === TRIES) throw error;
    }
  }
}
