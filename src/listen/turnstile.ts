/**
 * Large messages take turns. Decoded, a message can be hundreds of times as large as its bytes were (131,072 empty steps fit into 256 KiB),
 * and nothing else is done while it is decoded: so only so many bytes of them are with their handlers at once, whoever sent them.
 */
export class Turnstile {
  readonly #places: number;
  #taken = 0;
  readonly #queue: { readonly weight: number; readonly enter: () => void }[] = [];

  constructor(places: number) {
    this.#places = places;
  }

  /** Resolves when there is room, first come, first served; what weighs more than all places goes alone. Returns how to leave, once. */
  enter(weight: number): Promise<() => void> {
    return new Promise((resolve) => {
      const bounded = Math.min(weight, this.#places);
      this.#queue.push({ weight: bounded, enter: () => resolve(this.#leave(bounded)) });
      this.#next();
    });
  }

  #leave(weight: number): () => void {
    let inside = true;
    return () => {
      if (!inside) return;
      inside = false;
      this.#taken -= weight;
      this.#next();
    };
  }

  #next(): void {
    for (let first = this.#queue[0]; first !== undefined; first = this.#queue[0]) {
      if (this.#taken + first.weight > this.#places) return;
      this.#queue.shift();
      this.#taken += first.weight;
      first.enter();
    }
  }
}
