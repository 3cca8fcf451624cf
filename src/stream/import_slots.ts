import { AnabranchError } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';

import type { Drain } from './drain.ts';

/** Lets a few imports run at once. The others wait in the order in which they came, and hold no bytes. */
export class ImportSlots {
  readonly #drain: Drain;
  readonly #stallMs: number;
  readonly #waiting = new Set<() => void>();
  #running = 0;

  constructor(drain: Drain, stallMs: number) {
    this.#drain = drain;
    this.#stallMs = stallMs;
  }

  /** Waits for a slot. Returns a function that ends it. Errors: SERVER_DRAINING, the reason of the signal. */
  async enter(signal: AbortSignal): Promise<() => void> {
    signal.throwIfAborted();
    if (this.#running >= LIMITS.imports) await this.#turn(signal);
    else this.#running += 1;
    let isOver = false;
    return () => {
      if (!isOver) this.#leave();
      isOver = true;
    };
  }

  /**
   * Settles as the promise of the next bytes of an import does. Errors: MESSAGE_TIMEOUT (nothing came for a while, and
   * another import waits).
   */
  async unlessStalled<T>(bytes: Promise<T>): Promise<T> {
    const stalled = Promise.withResolvers<never>();
    const timer = setInterval(() => {
      if (this.#waiting.size > 0) stalled.reject(importStalled(this.#stallMs));
    }, this.#stallMs);
    try {
      return await Promise.race([bytes, stalled.promise]);
    } finally {
      clearInterval(timer);
    }
  }

  /** Resolves once a slot was handed over. */
  async #turn(signal: AbortSignal): Promise<void> {
    const turn = Promise.withResolvers<void>();
    const giveUp = () => turn.reject(signal.reason);
    this.#waiting.add(turn.resolve);
    signal.addEventListener('abort', giveUp);
    try {
      await this.#drain.race(turn.promise);
    } catch (error) {
      // It was handed over meanwhile.
      if (!this.#waiting.delete(turn.resolve)) this.#leave();
      throw error;
    } finally {
      signal.removeEventListener('abort', giveUp);
    }
  }

  #leave(): void {
    const [next] = this.#waiting;
    if (next === undefined) {
      this.#running -= 1;
      return;
    }
    this.#waiting.delete(next);
    next();
  }
}

function importStalled(stallMs: number): AnabranchError {
  return new AnabranchError(
    'MESSAGE_TIMEOUT',
    `The import has sent nothing for ${stallMs / 1000} s, and another import waits. Import the archive again: what is complete is skipped.`,
  );
}
