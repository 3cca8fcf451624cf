import { InTurn } from '../../../../queue/in_turn.ts';
import type { Slots } from '../../../contract/store.ts';

/** Length of one work period of all readers together, in milliseconds. Work that starts within it may end after it. */
const WORK_MS = 2;
/** The longest rest after a single read, in milliseconds. */
const LONGEST_REST_MS = 2000;
/** More writes are expected for this long after the last one, in milliseconds. */
const WRITER_MS = 20;
/**
 * Length of a pause as a multiple of the work before it. While there are writes, readers pause for longer than they
 * work: their clients, read threads and the processes of the database use processors, too.
 */
const PAUSE_PER_WORK = 3;
/** Results with fewer rows do not wait for a slot: processing them takes less time than waiting. */
const MANY_ROWS = 32;
/** Reads by key in one iteration of the event loop while there are writes. Their calls take longer than they do. */
const KEY_READS = 4;

/**
 * Shares the serving thread between large reads and everything else. Large results are returned to their readers one at
 * a time, each in its own iteration of the event loop, and to namespaces in turn. While there are writes, the readers
 * pause after each work period in proportion to its length. The time in which the thread parsed their rows is part of
 * that length.
 */
export class ReadSlots implements Slots {
  readonly #waiting = new InTurn<{ readonly writer: object | undefined; readonly resolve: () => void }>();
  /**
   * Start of the current work period, end of the last work, and time of the last requested write, in milliseconds of
   * `performance.now()`.
   */
  #begunAt = Number.NEGATIVE_INFINITY;
  #endedAt = Number.NEGATIVE_INFINITY;
  #wroteAt = Number.NEGATIVE_INFINITY;
  /** The writer of the last write, and the time of the last write of another writer before it. */
  #writer: object | undefined;
  #othersWroteAt = Number.NEGATIVE_INFINITY;
  /** For how long the thread has parsed rows for readers since the current work period began, in milliseconds. */
  #parsedMs = 0;
  /** True from the grant of a slot until the next iteration of the event loop. */
  #working = false;
  /** True while slots are granted to waiting readers. */
  #granting = false;
  /** Reads by key in this iteration of the event loop, and those that wait for a later one. */
  #keyReads = 0;
  readonly #waitingByKey = new InTurn<() => void>();

  /** Records that a write was requested, by `writer` if it is known. */
  wrote(writer?: object): void {
    if (writer === undefined || writer !== this.#writer) this.#othersWroteAt = this.#wroteAt;
    this.#writer = writer;
    this.#wroteAt = performance.now();
  }

  /**
   * Returns the rows. Many rows wait for a slot; what the reader does in the same iteration of the event loop belongs
   * to the slot. `parseMs` is for how long this thread was busy with the rows already.
   */
  async handOver<Rows extends readonly unknown[]>(rows: Rows, namespace?: string, parseMs = 0): Promise<Rows> {
    await this.#takeFor(rows.length, namespace, parseMs);
    return rows;
  }

  /** Like `handOver`, for the rows of several queries. */
  async handOverAll<Rows extends readonly unknown[]>(all: Rows[], namespace?: string, parseMs = 0): Promise<Rows[]> {
    await this.#takeFor(
      all.reduce((sum, rows) => sum + rows.length, 0),
      namespace,
      parseMs,
    );
    return all;
  }

  /**
   * Waits for a slot if there are many rows. The time in which they were parsed belongs to the work period that begins
   * then.
   */
  async #takeFor(rows: number, namespace: string | undefined, parseMs: number): Promise<void> {
    if (rows >= MANY_ROWS) await this.take(namespace);
    this.#parsedMs += parseMs;
  }

  /** Returns how long a lane stays empty after a read of this duration. Zero while there are no writes. */
  restAfter(milliseconds: number): number {
    return this.#isWritten(performance.now()) ? Math.min(milliseconds, LONGEST_REST_MS) : 0;
  }

  /** Waits, while there are writes, until few reads by key have run in this iteration of the event loop. */
  takeByKey(namespace = ''): Promise<void> | undefined {
    if (!this.#isWritten(performance.now())) return undefined;
    if (this.#keyReads >= KEY_READS) return new Promise((resolve) => void this.#waitingByKey.add(namespace, resolve));
    if (this.#keyReads === 0) setImmediate(() => this.#grantByKey());
    this.#keyReads += 1;
    return undefined;
  }

  #grantByKey(): void {
    this.#keyReads = Math.min(this.#waitingByKey.size, KEY_READS);
    if (this.#keyReads > 0) setImmediate(() => this.#grantByKey());
    for (let granted = 0; granted < this.#keyReads; granted += 1) {
      const next = this.#waitingByKey.next()!;
      this.#waitingByKey.serve(next);
      next.item();
    }
  }

  take(namespace = '', writer?: object): Promise<void> | undefined {
    if (!this.#granting && this.#mayWork(writer)) {
      this.#begin();
      return undefined;
    }
    return new Promise((resolve) => {
      this.#waiting.add(namespace, { writer, resolve });
      if (this.#granting) return;
      this.#granting = true;
      this.#grantLater();
    });
  }

  #mayWork(writer: object | undefined): boolean {
    const now = performance.now();
    if (this.#working) return false;
    if (this.#workedMs(now) < WORK_MS) return true;
    if (this.#isWritten(now, writer) && now - this.#endedAt < this.#workedMs(this.#endedAt) * PAUSE_PER_WORK)
      return false;
    this.#beginPeriod(now);
    return true;
  }

  /** Length of the current work period, with what was parsed meanwhile. */
  #workedMs(now: number): number {
    return now - this.#begunAt + this.#parsedMs;
  }

  #beginPeriod(now: number): void {
    this.#begunAt = now;
    this.#parsedMs = 0;
  }

  /** Returns whether there are writes of another writer. */
  #isWritten(now: number, writer?: object): boolean {
    const isOwn = writer !== undefined && writer === this.#writer;
    return now - (isOwn ? this.#othersWroteAt : this.#wroteAt) < WRITER_MS;
  }

  #begin(): void {
    this.#working = true;
    setImmediate(() => {
      this.#working = false;
      this.#endedAt = performance.now();
    });
  }

  /** Waits for the end of the pause, of which a part may be over. Must be called with a waiting reader. */
  #rest(): void {
    const work = () => {
      this.#beginPeriod(performance.now());
      this.#grant();
    };
    const now = performance.now();
    const left = this.#workedMs(this.#endedAt) * PAUSE_PER_WORK - (now - this.#endedAt);
    if (left > 0 && this.#isWritten(now, this.#waiting.next()!.item.writer)) setTimeout(work, Math.ceil(left));
    else setImmediate(work);
  }

  /** Grants one slot, and the next one in the next iteration of the event loop. */
  #grant(): void {
    const next = this.#waiting.next()!;
    this.#waiting.serve(next);
    this.#begin();
    next.item.resolve();
    this.#grantLater();
  }

  #grantLater(): void {
    setImmediate(() => {
      if (this.#waiting.size === 0) this.#granting = false;
      else if (this.#workedMs(this.#endedAt) < WORK_MS) this.#grant();
      else this.#rest();
    });
  }
}

/** Resolves in a later iteration of the event loop, after everything that is already waiting. */
export function nextIteration(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
