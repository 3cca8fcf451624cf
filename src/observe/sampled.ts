/** A value that costs a statement, for whoever asks often. */
export class Sampled<T> {
  /** As it was read last. Undefined: never, or the last attempt has failed. */
  value: T | undefined;
  readonly #read: () => Promise<T>;
  readonly #everyMs: number;
  readonly #patienceMs: number;
  readonly #pausePerWork: number;
  #reading: Promise<void> | undefined;
  #begun = 0;
  #notBefore = Number.NEGATIVE_INFINITY;

  constructor(read: () => Promise<T>, { everyMs, patienceMs = 1000, pausePerWork = 0 }: SampledTimes) {
    this.#read = read;
    this.#everyMs = everyMs;
    this.#patienceMs = patienceMs;
    this.#pausePerWork = pausePerWork;
  }

  /** Whether a read has begun, and has not ended within `patienceMs`. */
  get isLate(): boolean {
    return this.#reading !== undefined && performance.now() - this.#begun > this.#patienceMs;
  }

  /** Resolves when the value is as new as it may be, or has not come for `patienceMs`. Never rejects. */
  async refresh(): Promise<void> {
    const now = performance.now();
    if (this.#reading === undefined && now < this.#notBefore) return;
    this.#reading ??= this.#readOnce();
    let timer: NodeJS.Timeout | undefined;
    const patience = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, this.#patienceMs);
    });
    await Promise.race([this.#reading, patience]);
    clearTimeout(timer);
  }

  async #readOnce(): Promise<void> {
    this.#begun = performance.now();
    try {
      this.value = await this.#read();
    } catch {
      this.value = undefined;
    } finally {
      const now = performance.now();
      this.#notBefore = now + Math.max(this.#everyMs, (now - this.#begun) * this.#pausePerWork);
      this.#reading = undefined;
    }
  }
}

interface SampledTimes {
  /** Least time between two reads, in milliseconds. */
  readonly everyMs: number;
  /** Longest time that a caller waits for a read, in milliseconds. */
  readonly patienceMs?: number;
  /** Least time between two reads, as a multiple of the duration of the first one. Default: 0. */
  readonly pausePerWork?: number;
}
