/** Resolves in a later iteration of the event loop, after everything that is already waiting. */
export function nextIteration(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
