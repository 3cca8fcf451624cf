import { AnabranchError } from '../../../../domain/errors.ts';
import type { StorageFault } from '../../../../domain/verification.ts';
import type { Engine } from '../../kit/engine.ts';

/** Lets the database check its tables and indexes. */
export async function* checkDatabase(engine: Engine): AsyncGenerator<readonly StorageFault[], void, undefined> {
  try {
    for await (const messages of engine.checkDatabase()) yield messages.map(faultOf);
  } catch (error) {
    yield [unreadable(engine, 'the schema', error)];
  }
}

/**
 * Returns the fault that stopped a check: the database cannot read its pages, or returned values that cannot be
 * decoded. Throws other errors.
 */
export function unreadable(engine: Engine, what: string, error: unknown): StorageFault {
  if (!isUnreadable(engine, error)) throw error;
  return faultOf(`${what} cannot be read: ${(error as Error).message}`);
}

function isUnreadable(engine: Engine, error: unknown): boolean {
  if (!(error instanceof Error) || error instanceof AnabranchError) return false;
  const isGarbage = error instanceof TypeError || error instanceof RangeError || error instanceof SyntaxError;
  return isGarbage || engine.isDamage(error);
}

function faultOf(message: string): StorageFault {
  return { check: 'DATABASE', namespace: '', message };
}
