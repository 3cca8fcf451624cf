import { InTurn } from '../../queue/in_turn.ts';

/**
 * Bounds the memory of steps that were received and are not stored yet, of all calls together. A message of a few KiB
 * can have thousands of steps.
 */
export class WaitingSteps {
  /** Bytes in memory, estimated. */
  bytes = 0;
  readonly #limit: number;
  readonly #waiters = new InTurn<() => void>();
  #waking = false;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Counts bytes, or discounts negative ones. */
  add(bytes: number): void {
    this.bytes += bytes;
    if (bytes < 0) this.#wake();
  }

  /**
   * Returns undefined if another message may be decoded now, and else a promise of it. Principals are let in in turn,
   * the messages of each in order.
   */
  room(principal = ''): Promise<void> | undefined {
    if (this.bytes < this.#limit && this.#waiters.size === 0) return undefined;
    return new Promise((resolve) => {
      this.#waiters.add(principal, resolve);
      this.#wake();
    });
  }

  /** One at a time: a message is decoded and counted before the next one is let in. */
  #wake(): void {
    if (this.#waking || this.#waiters.size === 0 || this.bytes >= this.#limit) return;
    this.#waking = true;
    setImmediate(() => {
      this.#waking = false;
      if (this.bytes < this.#limit) this.#letIn();
      this.#wake();
    });
  }

  #letIn(): void {
    const next = this.#waiters.next();
    if (next === undefined) return;
    this.#waiters.serve(next);
    next.item();
  }
}
