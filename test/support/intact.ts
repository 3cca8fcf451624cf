import type { AnabranchClient } from '../../src/client/index.ts';

/** V1: throws an error with all faults if the database of a server is damaged. */
export async function requireIntact(client: AnabranchClient): Promise<void> {
  const faults: string[] = [];
  for await (const response of client.admin.verifyDatabase({})) {
    faults.push(...response.faults.map(({ message }) => message));
  }
  if (faults.length > 0) throw new Error(`the database is damaged:\n${faults.join('\n')}`);
}
