/**
 * Statements of one transaction that do not need each other's answers: sent one behind the other, they cost one round trip, and run in this order. It ends
 * when all have ended, also where one fails, so that none runs on after the transaction; what failed first is what it throws.
 */
export async function together<T extends readonly unknown[] | []>(
  work: T,
): Promise<{ -readonly [P in keyof T]: Awaited<T[P]> }> {
  const all = Promise.all(work);
  // It is heard below; until then a failure must not count as unhandled.
  all.catch(() => {});
  await Promise.allSettled(work);
  return all;
}
