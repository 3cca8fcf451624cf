import { AnabranchError } from '../domain/errors.ts';

/** A2: whether the server is shutting down. */
export interface Drain {
  readonly begun: boolean;
  /** Idempotent. */
  begin(): void;
  /** Errors: SERVER_DRAINING, if draining has begun. */
  throwIfBegun(): void;
  /** Settles as the promise does. Errors: SERVER_DRAINING, if draining begins before. */
  race<T>(promise: Promise<T>): Promise<T>;
  /** Calls the listener once when draining begins, or at once if it has begun. Returns a function that unsubscribes. */
  onBegin(listener: () => void): () => void;
}

export function createDrain(): Drain {
  const listeners = new Set<() => void>();
  let begun = false;

  const onBegin = (listener: () => void): (() => void) => {
    const own = () => listener();
    if (begun) own();
    else listeners.add(own);
    return () => void listeners.delete(own);
  };

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
    throwIfBegun() {
      if (begun) throw serverDraining();
    },
    async race(promise) {
      const draining = Promise.withResolvers<never>();
      const unsubscribe = onBegin(() => draining.reject(serverDraining()));
      try {
        return await Promise.race([promise, draining.promise]);
      } finally {
        unsubscribe();
      }
    },
    onBegin,
  };
}

export function serverDraining(): AnabranchError {
  return new AnabranchError(
    'SERVER_DRAINING',
    'The server is shutting down. Acked writes are stored. Connect again, and continue after the last ack.',
  );
}
