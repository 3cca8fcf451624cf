import { InTurn, type Waiting } from './in_turn.ts';

/** A share of a queue's capacity: waiting, running or ended. */
export interface Slot {
  /** Resolves to true when the slot begins, or to false if it ended before. */
  readonly begun: Promise<boolean>;
  /** Ends the slot, or leaves the queue. Idempotent. */
  readonly end: () => void;
}

interface Visit {
  readonly weight: number;
  readonly settle: (begun: boolean) => void;
}

/** Limits the total weight of the slots that run at once. */
export class SlotQueue {
  readonly #capacity: number;
  readonly #inside = new Set<Visit>();
  readonly #waiting = new InTurn<Visit>();
  #taken = 0;
  #waitingWeight = 0;

  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  /** Total weight of the slots that wait. */
  get waitingWeight(): number {
    return this.#waitingWeight;
  }

  /** Number of slots that are running or waiting. */
  get slots(): number {
    return this.#inside.size + this.#waiting.size;
  }

  /**
   * Keys are served in turn, the slots of one key in order of arrival. A weight above the capacity runs alone. The
   * caller must end the slot.
   */
  enter(weight: number, key = ''): Slot {
    const { promise: begun, resolve: settle } = Promise.withResolvers<boolean>();
    const visit: Visit = { weight: Math.min(weight, this.#capacity), settle };
    const waiting = this.#waiting.add(key, visit);
    this.#waitingWeight += visit.weight;
    this.#admit();
    return { begun, end: () => this.#end(waiting) };
  }

  /** Runs the work in a slot of weight 1. */
  async within<T>(key: string, work: () => Promise<T>): Promise<T> {
    const slot = this.enter(1, key);
    try {
      await slot.begun;
      return await work();
    } finally {
      slot.end();
    }
  }

  #end(waiting: Waiting<Visit>): void {
    const { item: visit } = waiting;
    if (this.#inside.delete(visit)) this.#taken -= visit.weight;
    else if (this.#waiting.delete(waiting)) {
      this.#waitingWeight -= visit.weight;
      visit.settle(false);
    } else return;
    this.#admit();
  }

  #admit(): void {
    for (let next = this.#waiting.next(); next !== undefined; next = this.#waiting.next()) {
      const { item: visit } = next;
      if (this.#taken + visit.weight > this.#capacity) return;
      this.#waiting.serve(next);
      this.#waitingWeight -= visit.weight;
      this.#inside.add(visit);
      this.#taken += visit.weight;
      visit.settle(true);
    }
  }
}
