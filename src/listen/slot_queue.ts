/** A share of a queue's capacity: waiting, running or ended. */
export interface Slot {
  /** Resolves to true when the slot begins, or to false if it ended before. */
  readonly begun: Promise<boolean>;
  /** Ends the slot, or leaves the queue. Idempotent. */
  end(): void;
}

interface Visit {
  readonly weight: number;
  readonly settle: (begun: boolean) => void;
}

/** Limits the total weight of the slots that run at once. */
export class SlotQueue {
  readonly #capacity: number;
  readonly #inside = new Set<Visit>();
  readonly #queue = new Set<Visit>();
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
    return this.#inside.size + this.#queue.size;
  }

  /** First come, first served. A weight above the capacity runs alone. The caller must end the slot. */
  enter(weight: number): Slot {
    const { promise: begun, resolve: settle } = Promise.withResolvers<boolean>();
    const visit: Visit = { weight: Math.min(weight, this.#capacity), settle };
    this.#queue.add(visit);
    this.#waitingWeight += visit.weight;
    this.#admit();
    return { begun, end: () => this.#end(visit) };
  }

  #end(visit: Visit): void {
    if (this.#inside.delete(visit)) this.#taken -= visit.weight;
    else if (this.#leave(visit)) visit.settle(false);
    else return;
    this.#admit();
  }

  #leave(visit: Visit): boolean {
    if (!this.#queue.delete(visit)) return false;
    this.#waitingWeight -= visit.weight;
    return true;
  }

  #admit(): void {
    for (const visit of this.#queue) {
      if (this.#taken + visit.weight > this.#capacity) return;
      this.#leave(visit);
      this.#inside.add(visit);
      this.#taken += visit.weight;
      visit.settle(true);
    }
  }
}
