import { isLocked } from './errors.ts';

/** Time that transactions wait for another program that writes to the file, in milliseconds: a caller is answered within 5 s (A1). */
const WAIT_MS = 4500;
/** Time between two attempts, in milliseconds. */
const RETRY_MS = 10;
/** If nobody found the file locked for so long, it is locked anew, in milliseconds. */
const ANOTHER_LOCK_MS = 1000;

/**
 * Runs transactions one after the other, in the order in which they were asked for. While another program holds the write lock of the file, the first one
 * tries again by a timer, so that the thread serves reads and connections. SQLite's own busy timeout would block the thread.
 */
export class WriteLock {
  /** Number of transactions that were asked for, in total and at the last call of `hadOthers`. */
  private asked = 0;
  private seen = 0;
  private last: Promise<unknown> = Promise.resolve();
  /** Since when each attempt found the file locked. */
  private lockedSince: number | undefined;
  /** When an attempt last found the file locked. */
  private lockedAt = 0;

  /**
   * `transaction` must fail without effect if the file is locked. Errors: DATABASE_UNAVAILABLE if the file has been locked for `WAIT_MS`. The time counts from
   * the first attempt of any transaction, because whoever asks may itself have waited for the one before.
   */
  run<T>(transaction: () => Promise<T>): Promise<T> {
    this.asked += 1;
    const result = this.last.then(() => this.retryWhileLocked(transaction));
    this.last = result.catch(() => {});
    return result;
  }

  /** Returns whether transactions other than the caller's last one were asked for since the last call. */
  hadOthers(): boolean {
    const others = this.asked - this.seen > 1;
    this.seen = this.asked;
    return others;
  }

  private async retryWhileLocked<T>(transaction: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        const result = await transaction();
        this.lockedSince = undefined;
        return result;
      } catch (error) {
        if (!isLocked(error)) {
          this.lockedSince = undefined;
          throw error;
        }
        const now = performance.now();
        if (this.lockedSince === undefined || now - this.lockedAt > ANOTHER_LOCK_MS) this.lockedSince = now;
        this.lockedAt = now;
        if (now - this.lockedSince >= WAIT_MS) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}
