/** Resolves in a later turn of the event loop: whatever else waits for this process goes first. */
export function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
