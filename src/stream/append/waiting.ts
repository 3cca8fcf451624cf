/**
 * Bounds the memory of steps that were received and are not stored yet, of all calls together. A message of a few KiB
 * can have thousands of steps.
 */
export class WaitingSteps {
  /** Bytes in memory, estimated. */
  bytes = 0;
  readonly #limit: number;
  readonly #waiters: (() => void)[] = [];
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
   * Returns undefined if another message may be decoded now, and else a promise of it. Messages that wait are let in
   * in order.
   */
  room(): Promise<void> | undefined {
    if (this.bytes < this.#limit && this.#waiters.length === 0) return undefined;
    return new Promise((resolve) => {
      this.#waiters.push(resolve);
      this.#wake();
    });
  }

  /** One at a time: a message is decoded and counted before the next one is let in. */
  #wake(): void {
    if (this.#waking || this.#waiters.length === 0 || this.bytes >= this.#limit) return;
    this.#waking = true;
    setImmediate(() => {
      this.#waking = false;
      if (this.bytes < this.#limit) this.#waiters.shift()?.();
      this.#wake();
    });
  }
}
