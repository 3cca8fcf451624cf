/** Resolves in a later iteration of the event loop, after everything that is already waiting. */
export function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
