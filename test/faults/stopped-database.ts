import { openOn } from '../store/on_store.ts';
import { faultsOf } from '../store/verified.ts';
import type { TestDatabase } from '../support/database.ts';

/** V1: throws an error with all faults if the database of a server that was killed is damaged. */
export async function requireIntactDatabase(database: TestDatabase): Promise<void> {
  const store = await openOn(database);
  const faults = await faultsOf(store).finally(() => store.close());
  if (faults.length > 0) {
    throw new Error(`a kill damaged the database:\n${faults.map(({ message }) => message).join('\n')}`);
  }
}
