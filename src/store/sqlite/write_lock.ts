import { SlotQueue } from '../../queue/slot_queue.ts';
import type { PoolLoad } from '../contract/load.ts';
import { isLocked } from './errors.ts';

/**
 * Time that transactions wait for another program that writes to the file, in milliseconds. Callers must be answered
 * within 5 s (A1).
 */
const WAIT_MS = 4500;
/** Time between two attempts, in milliseconds. */
const RETRY_MS = 10;
/** If no attempt found the file locked for this long, a lock counts as a new one. In milliseconds. */
const ANOTHER_LOCK_MS = 1000;

/**
 * Runs transactions one after the other: those of a namespace in order of arrival, and namespaces in turn. While
 * another program holds the write lock of the file, the first one retries by a timer, so that the thread serves other
 * work. SQLite's own busy timeout would block the thread.
 */
export class WriteLock {
  /** Number of requested transactions, in total and at the last call of `hadOthers`. */
  #asked = 0;
  #seen = 0;
  readonly #turns = new SlotQueue(1);
  /** Start of the current lock; undefined if the last attempt did not find the file locked. */
  #lockedSince: number | undefined;
  /** Time of the last attempt that found the file locked. */
  #lockedAt = 0;

  /**
   * `transaction` must fail without effect if the file is locked. Errors: DATABASE_UNAVAILABLE if the file has been
   * locked for `WAIT_MS`. The time counts from the first failed attempt of any transaction, because callers may have
   * waited for earlier ones. Default namespace: that of the server's own work, which has the commit groups.
   */
  run<T>(transaction: () => T | Promise<T>, namespace = ''): Promise<T> {
    this.#asked += 1;
    return this.#turns.within(namespace, () => this.#retryWhileLocked(transaction));
  }

  get load(): PoolLoad {
    const { slots, waitingWeight: waiting } = this.#turns;
    return { used: slots - waiting, most: 1, waiting };
  }

  /** Returns whether other transactions than the caller's last one were requested since the last call. */
  hadOthers(): boolean {
    const others = this.#asked - this.#seen > 1;
    this.#seen = this.#asked;
    return others;
  }

  async #retryWhileLocked<T>(transaction: () => T | Promise<T>): Promise<T> {
    for (;;) {
      try {
        const result = await transaction();
        this.#lockedSince = undefined;
        return result;
      } catch (error) {
        if (!isLocked(error)) {
          this.#lockedSince = undefined;
          throw error;
        }
        const now = performance.now();
        if (this.#lockedSince === undefined || now - this.#lockedAt > ANOTHER_LOCK_MS) this.#lockedSince = now;
        this.#lockedAt = now;
        if (now - this.#lockedSince >= WAIT_MS) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}
