/** Calls `report` for the first of many events at once, and then at most once a period for those that follow. */
export class Throttle {
  readonly #periodMs: number;
  readonly #report: () => void;
  #pending = false;
  #silence: NodeJS.Timeout | undefined;

  constructor(periodMs: number, report: () => void) {
    this.#periodMs = periodMs;
    this.#report = report;
  }

  note(): void {
    this.#pending = true;
    if (this.#silence === undefined) this.#send();
  }

  /** Sends the last report, if one is due. */
  stop(): void {
    clearTimeout(this.#silence);
    this.#silence = undefined;
    if (this.#pending) this.#report();
    this.#pending = false;
  }

  #send(): void {
    this.#pending = false;
    this.#silence = setTimeout(() => {
      this.#silence = undefined;
      if (this.#pending) this.#send();
    }, this.#periodMs).unref();
    this.#report();
  }
}
