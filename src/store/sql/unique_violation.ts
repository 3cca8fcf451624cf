/** A row of that key is there already; thrown by engines for primary keys and unique indexes. */
export class UniqueViolation extends Error {
  override readonly name = 'UniqueViolation';
}

/** A racer can take a name again and again; each time there is more to see. */
const TRIES = 5;

/**
 * Runs a write again when a racer took what it had looked for and found free: then it finds who has it, and refuses in words. `work` is to be told
 * nothing of the tries before.
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
