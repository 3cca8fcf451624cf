import { AnabranchError } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';
import { SlotQueue } from '../queue/slot_queue.ts';
import type { Drain } from './drain.ts';

/** Bytes that an import must send in the time in which a reader must read something. */
const LEAST_BYTES = 64 * 1024;

/** Lets a few imports run at once. The others wait, those of several principals in turn, and hold no bytes. */
export class ImportSlots {
  readonly #drain: Drain;
  readonly #stallMs: number;
  readonly #slots = new SlotQueue(LIMITS.imports);

  constructor(drain: Drain, stallMs: number) {
    this.#drain = drain;
    this.#stallMs = stallMs;
  }

  /** Waits for a slot. Returns a function that ends it. Errors: SERVER_DRAINING, the reason of the signal. */
  async enter(principal: string, signal: AbortSignal): Promise<() => void> {
    signal.throwIfAborted();
    const { begun, end } = this.#slots.enter(1, principal);
    signal.addEventListener('abort', end);
    try {
      await this.#drain.race(begun);
      signal.throwIfAborted();
      return end;
    } catch (error) {
      end();
      throw error;
    } finally {
      signal.removeEventListener('abort', end);
    }
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
        if (this.#slots.waitingWeight > 0) stalled.reject(importStalled(this.#stallMs));
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
        else if (left <= 0 && this.#slots.waitingWeight > 0) throw importStalled(this.#stallMs);
        else if (left <= 0) begin();
        return arrived;
      } finally {
        clearTimeout(timer);
      }
    };
  }
}

function importStalled(stallMs: number): AnabranchError {
  return new AnabranchError(
    'MESSAGE_TIMEOUT',
    `The import has sent less than ${LEAST_BYTES / 1024} KiB in ${stallMs / 1000} s of waiting for it, and another import waits. Import the archive again: what is complete is skipped.`,
  );
}
