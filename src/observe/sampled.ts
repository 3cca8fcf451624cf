/** A value that costs a statement, for whoever asks often. */
export class Sampled<T> {
  /** As it was read last. Undefined: never, or the last attempt has failed. */
  value: T | undefined;
  readonly #read: () => Promise<T>;
  readonly #everyMs: number;
  readonly #patienceMs: number;
  #reading: Promise<void> | undefined;
  #notBefore = Number.NEGATIVE_INFINITY;

  constructor(read: () => Promise<T>, { everyMs, patienceMs = 1000 }: SampledTimes) {
    this.#read = read;
    this.#everyMs = everyMs;
    this.#patienceMs = patienceMs;
  }

  /** Resolves when the value is as new as it may be, or has not come for `patienceMs`. Never rejects. */
  async refresh(): Promise<void> {
    const now = performance.now();
    if (this.#reading === undefined && now < this.#notBefore) return;
    this.#reading ??= this.#readOnce(now);
    let timer: NodeJS.Timeout | undefined;
    const patience = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, this.#patienceMs);
    });
    await Promise.race([this.#reading, patience]);
    clearTimeout(timer);
  }

  async #readOnce(begun: number): Promise<void> {
    try {
      this.value = await this.#read();
    } catch {
      this.value = undefined;
    } finally {
      const now = performance.now();
      this.#notBefore = now + Math.max(this.#everyMs, (now - begun) * PAUSE_PER_WORK);
      this.#reading = undefined;
    }
  }
}

interface SampledTimes {
  /** Least time between two reads, in milliseconds. */
  readonly everyMs: number;
  /** Longest time that a caller waits for a read, in milliseconds. */
  readonly patienceMs?: number;
}

/** A read that takes long is repeated less often. */
const PAUSE_PER_WORK = 50;
