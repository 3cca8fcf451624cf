import type { StatementTimes } from '../sql/kit/statement_times.ts';
import { Connection, openReader } from './connection.ts';
import { isLocked, isTooBig } from './errors.ts';
import type { StatementJob } from './read_threads.ts';

/** Larger values are read on a thread. */
const VALUE_BYTES = 16 * 1024;
/** Page cache. Each commit empties it. */
const CACHE_KIB = 8192;
/** A read that takes longer has waited for the disk, in milliseconds. */
const SLOW_MS = 1;
/** After a slow read, threads read for this multiple of its duration: readers get a quarter of the serving thread. */
const REST_PER_SLOW = 3;

/**
 * Reads rows by key on the serving thread, because the way to a read thread and back takes longer than such a read.
 * Leaves to a thread whatever would block: a value above 16 KiB, a locked file, and all reads while the disk is slow.
 * No transaction is open between two reads, so the log can always be restarted.
 */
export class KeyReads {
  readonly #connection: Connection;
  #slowUntil = Number.NEGATIVE_INFINITY;
  #closed = false;

  constructor(path: string, times?: StatementTimes) {
    const database = openReader(path);
    // From here on, a read must not block on a lock. SQLite refuses a value above the limit before it reads its pages.
    database.exec(`pragma cache_size = -${CACHE_KIB}; pragma busy_timeout = 0`);
    database.limits.length = VALUE_BYTES;
    this.#connection = new Connection(database, times);
  }

  /** Returns the rows; undefined if a thread must read them. */
  run({ kind, text, parameters }: StatementJob): unknown[] | undefined {
    const begun = performance.now();
    if (this.#closed || begun < this.#slowUntil) return undefined;
    try {
      return this.#connection.prepare(text, kind).all(parameters);
    } catch (error) {
      if (isTooBig(error) || isLocked(error)) return undefined;
      throw error;
    } finally {
      const ended = performance.now();
      if (ended - begun > SLOW_MS) this.#slowUntil = ended + (ended - begun) * REST_PER_SLOW;
    }
  }

  /** Leaves all later reads to threads. */
  close(): void {
    this.#closed = true;
    this.#connection.close();
  }
}
