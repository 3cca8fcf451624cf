/**
 * Runs statements of one transaction that do not need each other's results. Sent back to back, they cost one round
 * trip, and run in this order. Waits for all of them even if one fails, so that none runs after the transaction.
 * Rejects with the first failure.
 */
export async function inOneRoundTrip<T extends readonly unknown[] | []>(
  work: T,
): Promise<{ -readonly [P in keyof T]: Awaited<T[P]> }> {
  const all = Promise.all(work);
  // The failure is awaited below. Until then it must not count as unhandled.
  all.catch(() => {});
  await Promise.allSettled(work);
  return all;
}
