import { InTurn } from '../../queue/in_turn.ts';

/** The part of the limit that one principal may take: the others never wait for the steps of one alone. */
const PRINCIPAL_PART = 7 / 8;

/** The bytes of one principal, counted here. */
export interface WaitingShare {
  waitingBytes: number;
}

interface Waiter {
  /** Undefined: its principal has no limit. */
  readonly share: WaitingShare | undefined;
  readonly resolve: () => void;
}

/**
 * Bounds the memory of steps that were received and are not stored yet, of all calls together. A message of a few KiB
 * can have thousands of steps.
 */
export class WaitingSteps {
  /** Bytes in memory, estimated. */
  bytes = 0;
  readonly #limit: number;
  readonly #waiters = new InTurn<Waiter>();
  #waking = false;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Counts bytes, or discounts negative ones. */
  add(bytes: number, share?: WaitingShare): void {
    this.bytes += bytes;
    if (share !== undefined) share.waitingBytes += bytes;
    if (bytes < 0) this.#wake();
  }

  /**
   * Returns undefined if another message may be decoded now, and else a promise of it. Principals are let in in turn,
   * the messages of each in order.
   */
  room(principal = '', share?: WaitingShare): Promise<void> | undefined {
    if (this.#waiters.size === 0 && this.#hasRoom(share)) return undefined;
    return new Promise((resolve) => {
      this.#waiters.add(principal, { share, resolve });
      this.#wake();
    });
  }

  #hasRoom(share: WaitingShare | undefined): boolean {
    if (this.bytes >= this.#limit) return false;
    return share === undefined || share.waitingBytes < this.#limit * PRINCIPAL_PART;
  }

  /** One at a time: a message is decoded and counted before the next one is let in. */
  #wake(): void {
    if (this.#waking || this.#waiters.size === 0 || this.bytes >= this.#limit) return;
    this.#waking = true;
    setImmediate(() => {
      this.#waking = false;
      const next = this.#waiters.next(({ share }) => this.#hasRoom(share));
      if (next === undefined) return;
      this.#waiters.serve(next);
      next.item.resolve();
      this.#wake();
    });
  }
}
