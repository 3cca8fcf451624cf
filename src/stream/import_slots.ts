import { AnabranchError } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';
import type { Drain } from './drain.ts';

/** Bytes that an import must send in the time in which a reader must read something. */
const LEAST_BYTES = 64 * 1024;

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
   * Returns a function for the messages of one import, which settles as the promise of the next one does. Errors:
   * MESSAGE_TIMEOUT (the import has waited too long for too few bytes, and another import waits).
   */
  pace(): <T>(next: Promise<T>, bytesOf: (next: T) => number) => Promise<T> {
    let [left, bytes] = [this.#stallMs, 0];
    const begin = () => {
      [left, bytes] = [this.#stallMs, 0];
    };
    return async (next, bytesOf) => {
      const stalled = Promise.withResolvers<never>();
      let waitsSince = performance.now();
      const check = () => {
        if (this.#waiting.size > 0) stalled.reject(importStalled(this.#stallMs));
        begin();
        waitsSince = performance.now();
        timer = setTimeout(check, left);
      };
      let timer = setTimeout(check, left);
      try {
        const arrived = await Promise.race([next, stalled.promise]);
        left -= performance.now() - waitsSince;
        bytes += bytesOf(arrived);
        if (bytes >= LEAST_BYTES) begin();
        else if (left <= 0 && this.#waiting.size > 0) throw importStalled(this.#stallMs);
        else if (left <= 0) begin();
        return arrived;
      } finally {
        clearTimeout(timer);
      }
    };
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
    `The import has sent less than ${LEAST_BYTES / 1024} KiB in ${stallMs / 1000} s of waiting for it, and another import waits. Import the archive again: what is complete is skipped.`,
  );
}
