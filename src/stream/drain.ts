import { AnabranchError } from '../domain/errors.ts';

/** A2: whether the streams of the server, or those of one credential, must end. */
export interface Drain {
  readonly begun: boolean;
  /** Idempotent. Default error: SERVER_DRAINING. */
  begin(error?: AnabranchError): void;
  /** Errors: that of `begin`, if draining has begun. */
  throwIfBegun(): void;
  /** Settles as the promise does. Errors: that of `begin`, if draining begins before. */
  race<T>(promise: Promise<T>): Promise<T>;
  /** Calls the listener once when draining begins, or at once if it has begun. Returns a function that unsubscribes. */
  onBegin(listener: (error: AnabranchError) => void): () => void;
}

export function createDrain(): Drain {
  const listeners = new Set<(error: AnabranchError) => void>();
  let cause: AnabranchError | undefined;

  const onBegin: Drain['onBegin'] = (listener) => {
    const own = (error: AnabranchError) => listener(error);
    if (cause !== undefined) own(cause);
    else listeners.add(own);
    return () => void listeners.delete(own);
  };

  return {
    get begun() {
      return cause !== undefined;
    },
    begin(error = serverDraining()) {
      cause ??= error;
      for (const listener of listeners) {
        listeners.delete(listener);
        listener(cause);
      }
    },
    throwIfBegun() {
      if (cause !== undefined) throw cause;
    },
    async race(promise) {
      const draining = Promise.withResolvers<never>();
      const unsubscribe = onBegin(draining.reject);
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
