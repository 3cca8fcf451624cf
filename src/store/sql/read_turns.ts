/** Readers work this long at a stretch, all of them together. */
const WORK_MS = 2;
/** Between two stretches, where somebody writes: half of the serving thread's time is theirs. */
const REST_MS = 2;
/** So long after a write, more of them are expected. */
const WRITER_MS = 20;
/** Working on fewer rows takes less time than waiting for a turn. */
const MANY_ROWS = 32;

/**
 * Shares the serving thread between those who read much and everybody else. Large results are handed over one at a time, for 2 ms at a stretch.
 * Between two stretches the event loop serves all others, for at least 2 ms while somebody writes.
 */
export class ReadTurns {
  private readonly waiting: (() => void)[] = [];
  /** When the current stretch began, and when somebody wrote last, in milliseconds. */
  private begunAt = Number.NEGATIVE_INFINITY;
  private wroteAt = Number.NEGATIVE_INFINITY;
  private going = false;

  /** Somebody writes. */
  wrote(): void {
    this.wroteAt = performance.now();
  }

  /** Returns the rows, many of them when it is their reader's turn. */
  async handOver<Rows extends readonly unknown[]>(reading: Promise<Rows>): Promise<Rows> {
    const rows = await reading;
    if (rows.length >= MANY_ROWS) await this.take();
    return rows;
  }

  /** Resolves when large work may begin; undefined: now. What is done before the event loop's next turn belongs to it. */
  take(): Promise<void> | undefined {
    if (!this.going && this.isWorkTime()) return undefined;
    return new Promise((resolve) => {
      this.waiting.push(resolve);
      if (this.going) return;
      this.going = true;
      this.rest();
    });
  }

  private isWorkTime(): boolean {
    const now = performance.now();
    if (now - this.begunAt > WORK_MS + REST_MS) this.begunAt = now;
    return now - this.begunAt < WORK_MS;
  }

  private rest(): void {
    const work = () => {
      this.begunAt = performance.now();
      this.next();
    };
    if (performance.now() - this.wroteAt < WRITER_MS) setTimeout(work, REST_MS);
    else setImmediate(work);
  }

  /** Gives one turn, and the next one when the work of this one is done: a turn of the event loop later. */
  private next(): void {
    const give = this.waiting.shift();
    this.going = give !== undefined;
    if (give === undefined) return;
    give();
    setImmediate(() => {
      if (performance.now() - this.begunAt < WORK_MS) this.next();
      else this.rest();
    });
  }
}
