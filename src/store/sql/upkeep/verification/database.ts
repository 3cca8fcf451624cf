import { AnabranchError } from '../../../../domain/errors.ts';
import type { StorageFault } from '../../../../domain/verification.ts';
import type { Engine } from '../../kit/engine.ts';

export interface IntegrityEngine extends Engine {
  readonly integrity: Integrity;
}

/** Checks of the database by itself. */
export interface Integrity {
  /**
   * Lets the database check the pages of its tables and the entries of its indexes, one table after the other, off the
   * serving thread. Returns what is wrong.
   */
  check(): AsyncGenerator<readonly string[], void, undefined>;

  /** Returns whether the database could not read what it has stored. */
  isDamage(error: unknown): boolean;
}

/** Lets the database check its tables and indexes. */
export async function* checkDatabase(
  engine: IntegrityEngine,
): AsyncGenerator<readonly StorageFault[], void, undefined> {
  try {
    for await (const messages of engine.integrity.check()) yield messages.map(faultOf);
  } catch (error) {
    yield [unreadable(engine, 'the schema', error)];
  }
}

/**
 * Returns the fault that stopped a check: the database cannot read its pages, or returned values that cannot be
 * decoded. Throws other errors.
 */
export function unreadable(engine: IntegrityEngine, what: string, error: unknown): StorageFault {
  if (!isUnreadable(engine, error)) throw error;
  return faultOf(`${what} cannot be read: ${(error as Error).message}`);
}

function isUnreadable(engine: IntegrityEngine, error: unknown): boolean {
  if (!(error instanceof Error) || error instanceof AnabranchError) return false;
  const isGarbage = error instanceof TypeError || error instanceof RangeError || error instanceof SyntaxError;
  return isGarbage || engine.integrity.isDamage(error);
}

function faultOf(message: string): StorageFault {
  return { check: 'DATABASE', namespace: '', message };
}
