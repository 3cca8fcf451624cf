/** A turn at the turnstile: waited for, held, or ended. */
export interface Turn {
  /** Resolves to true when the turn begins, or to false if it ended before. */
  readonly begun: Promise<boolean>;
  /** Gives the turn back, or leaves the queue. Idempotent. */
  end(): void;
}

interface Visit {
  readonly weight: number;
  readonly settle: (begun: boolean) => void;
}

/**
 * Lets large messages take turns. A decoded message can be hundreds of times as large as its bytes (131,072 empty steps fit into 256 KiB), and
 * decoding blocks everything else. So only a limited number of bytes are being decoded at once, over all requests.
 */
export class Turnstile {
  readonly #capacity: number;
  readonly #inside = new Set<Visit>();
  readonly #queue = new Set<Visit>();
  #taken = 0;

  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  /** Turns that are held or waited for. */
  get turns(): number {
    return this.#inside.size + this.#queue.size;
  }

  /** First come, first served. A weight above the capacity goes alone. The caller must end the turn. */
  enter(weight: number): Turn {
    const { promise: begun, resolve: settle } = Promise.withResolvers<boolean>();
    const visit: Visit = { weight: Math.min(weight, this.#capacity), settle };
    this.#queue.add(visit);
    this.#admit();
    return { begun, end: () => this.#end(visit) };
  }

  #end(visit: Visit): void {
    if (this.#inside.delete(visit)) this.#taken -= visit.weight;
    else if (this.#queue.delete(visit)) visit.settle(false);
    else return;
    this.#admit();
  }

  #admit(): void {
    for (const visit of this.#queue) {
      if (this.#taken + visit.weight > this.#capacity) return;
      this.#queue.delete(visit);
      this.#inside.add(visit);
      this.#taken += visit.weight;
      visit.settle(true);
    }
  }
}
