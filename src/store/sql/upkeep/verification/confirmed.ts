import type { StorageFault } from '../../../../domain/verification.ts';

/**
 * Runs a check, and again if it found faults. Returns those that were found both times: what changed between two
 * statements of a check may look like a fault once.
 */
export async function confirmed(check: () => Promise<readonly StorageFault[]>): Promise<readonly StorageFault[]> {
  const found = await check();
  if (found.length === 0) return found;
  const again = new Set((await check()).map(({ message }) => message));
  return found.filter(({ message }) => again.has(message));
}
