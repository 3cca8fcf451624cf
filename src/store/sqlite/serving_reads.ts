import type { DatabaseSync } from 'node:sqlite';
import type { StatementTimes } from '../sql/kit/statement_times.ts';
import { Connection, openReader } from './connection.ts';
import { isLocked, isTooBig } from './errors.ts';
import { makeInterruptible } from './interruption.ts';
import type { StatementJob } from './read_threads.ts';

/** Larger values are read on a thread. */
const VALUE_BYTES = 16 * 1024;
/** Page cache of a connection. Each commit empties it. */
const CACHE_KIB = 8192;
/** A read by key that takes longer has waited for the disk, in milliseconds. A brief read ends then. */
const SLOW_MS = 1;
/** After a slow read, threads read for this multiple of its duration: readers get a quarter of the serving thread. */
const REST_PER_SLOW = 3;
/** For this multiple of a brief read that did not end, threads read its statement. */
const REST_PER_LATE = 100;
/** Safety bound on the statements that rest. */
const MOST_LATE = 500;

const LATE = new Error('the read takes too long for the serving thread');

/**
 * Reads on the serving thread, because the way to a read thread and back takes longer than many a read: rows by key,
 * and brief reads, which end after a millisecond. Leaves to a thread whatever would block: a value above 16 KiB, a
 * locked file, and all reads while the disk is slow. No transaction is open between two reads, so the log can always
 * be restarted.
 */
export class ServingReads {
  readonly #byKey: Connection;
  readonly #brief: Connection;
  /** By statement, until when it is read on threads. */
  readonly #lateUntil = new Map<string, number>();
  #deadline = Number.POSITIVE_INFINITY;
  #slowUntil = Number.NEGATIVE_INFINITY;
  #closed = false;

  constructor(path: string, times?: StatementTimes) {
    this.#byKey = new Connection(openQuick(path), times);
    const brief = openQuick(path);
    const look = () => {
      if (performance.now() > this.#deadline) throw LATE;
    };
    makeInterruptible(brief, look, 1);
    this.#brief = new Connection(brief, times);
  }

  /** Returns the rows; undefined if a thread must read them. */
  run({ kind, text, parameters }: StatementJob, isBrief = false): unknown[] | undefined {
    const begun = performance.now();
    if (this.#closed || begun < this.#slowUntil) return undefined;
    if (isBrief && begun < (this.#lateUntil.get(text) ?? begun)) return undefined;
    this.#deadline = begun + SLOW_MS;
    let rows: unknown[] | undefined;
    try {
      rows = (isBrief ? this.#brief : this.#byKey).prepare(text, kind).all(parameters);
    } catch (error) {
      if (error !== LATE && !isTooBig(error) && !isLocked(error)) throw error;
    }
    const ended = performance.now();
    if (ended - begun > SLOW_MS) this.#slowUntil = ended + (ended - begun) * REST_PER_SLOW;
    if (isBrief && rows === undefined) this.#leave(text, ended + (ended - begun) * REST_PER_LATE);
    return rows;
  }

  /** Leaves all later reads to threads. */
  close(): void {
    this.#closed = true;
    this.#byKey.close();
    this.#brief.close();
  }

  #leave(text: string, until: number): void {
    if (this.#lateUntil.size >= MOST_LATE) this.#lateUntil.clear();
    this.#lateUntil.set(text, until);
  }
}

/** A read must not block on a lock. SQLite refuses a value above the limit before it reads its pages. */
function openQuick(path: string): DatabaseSync {
  const database = openReader(path);
  database.exec(`pragma cache_size = -${CACHE_KIB}; pragma busy_timeout = 0`);
  database.limits.length = VALUE_BYTES;
  return database;
}
