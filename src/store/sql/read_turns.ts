/** No turn is given in a stretch that has lasted so long, for all readers together. */
const WORK_MS = 2;
/** So long after a write, more of them are expected. */
const WRITER_MS = 20;
/** Working on fewer rows takes less time than waiting for a turn. */
const MANY_ROWS = 32;

/**
 * Shares the serving thread between those who read much and everybody else. Large results are handed over one at a time, each
 * in a turn of the event loop of its own. While somebody writes, the readers pause after every stretch for as long as it took.
 */
export class ReadTurns {
  private readonly waiting: (() => void)[] = [];
  /** In milliseconds: when the current stretch began, when the last work ended, and when somebody wrote last. */
  private begunAt = Number.NEGATIVE_INFINITY;
  private endedAt = Number.NEGATIVE_INFINITY;
  private wroteAt = Number.NEGATIVE_INFINITY;
  /** A turn was given, and the event loop has not turned since. */
  private working = false;
  /** Turns are given to those who wait. */
  private giving = false;

  /** Somebody writes. */
  wrote(): void {
    this.wroteAt = performance.now();
  }

  /** Returns the rows, many of them when it is their reader's turn. What is done with them before the loop turns is the work of that turn. */
  async handOver<Rows extends readonly unknown[]>(reading: Promise<Rows>): Promise<Rows> {
    const rows = await reading;
    if (rows.length >= MANY_ROWS) await this.take();
    return rows;
  }

  private take(): Promise<void> | undefined {
    if (!this.giving && this.mayWork()) {
      this.begin();
      return undefined;
    }
    return new Promise((resolve) => {
      this.waiting.push(resolve);
      if (this.giving) return;
      this.giving = true;
      this.goOn();
    });
  }

  private mayWork(): boolean {
    const now = performance.now();
    if (this.working) return false;
    if (now - this.begunAt < WORK_MS) return true;
    if (this.isWritten(now) && now - this.endedAt < this.endedAt - this.begunAt) return false;
    this.begunAt = now;
    return true;
  }

  private isWritten(now: number): boolean {
    return now - this.wroteAt < WRITER_MS;
  }

  private begin(): void {
    this.working = true;
    setImmediate(() => {
      this.working = false;
      this.endedAt = performance.now();
    });
  }

  private rest(): void {
    const work = () => {
      this.begunAt = performance.now();
      this.give();
    };
    const now = performance.now();
    if (this.isWritten(now)) setTimeout(work, Math.ceil(now - this.begunAt));
    else setImmediate(work);
  }

  /** Gives one turn, and the next one when the loop has turned. */
  private give(): void {
    const resolve = this.waiting.shift();
    this.giving = resolve !== undefined;
    if (resolve === undefined) return;
    this.begin();
    resolve();
    this.goOn();
  }

  private goOn(): void {
    setImmediate(() => {
      if (performance.now() - this.begunAt < WORK_MS) this.give();
      else this.rest();
    });
  }
}
