/** Listeners of one process, told of trajectories that changed. A listener that throws is a fault of the service, and hurts no other one. */
export class ChangeListeners {
  private readonly listeners = new Set<(key: bigint | undefined) => void>();
  private readonly onFault: (error: unknown) => void;

  constructor(onFault: (error: unknown) => void) {
    this.onFault = onFault;
  }

  add(listener: (key: bigint | undefined) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell(key: bigint | undefined): void {
    for (const listener of this.listeners) {
      try {
        listener(key);
      } catch (error) {
        this.onFault(error);
      }
    }
  }
}
