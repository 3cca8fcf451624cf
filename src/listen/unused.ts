/** Notices that a port has had no connection for some time. */
export class Unused {
  readonly #ms: number;
  readonly #noticed = new AbortController();
  #timer: NodeJS.Timeout | undefined;

  constructor(ms: number) {
    this.#ms = ms;
  }

  /** Aborted when there has been none for that time. */
  get signal(): AbortSignal {
    return this.#noticed.signal;
  }

  /** Takes the number of connections, when the port begins to listen and whenever it changes. */
  count(connections: number): void {
    clearTimeout(this.#timer);
    if (connections === 0) this.#timer = setTimeout(() => this.#noticed.abort(), this.#ms);
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}
