import { AnabranchError } from '../domain/errors.ts';

/** A2: the server is shutting down. */
export interface Drain {
  readonly begun: boolean;
  /** Idempotent. */
  begin(): void;
  /** Called once, when draining begins; at once if it has begun. Returns how to stop waiting for it. */
  onBegin(listener: () => void): () => void;
}

export function createDrain(): Drain {
  const listeners = new Set<() => void>();
  let begun = false;
  return {
    get begun() {
      return begun;
    },
    begin() {
      begun = true;
      for (const listener of listeners) {
        listeners.delete(listener);
        listener();
      }
    },
    onBegin(listener) {
      const own = () => listener();
      if (begun) own();
      else listeners.add(own);
      return () => void listeners.delete(own);
    },
  };
}

export function serverDraining(): AnabranchError {
  return new AnabranchError(
    'SERVER_DRAINING',
    'The server is shutting down. Acked writes are stored. Connect again, and continue after the last ack.',
  );
}
