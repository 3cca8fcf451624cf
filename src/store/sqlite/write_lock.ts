import { isLocked } from './errors.ts';

/** Time that a transaction waits for another program that writes to the file, in milliseconds: a caller is answered within 5 s (A1). */
const WAIT_MS = 4500;
/** Time between two attempts, in milliseconds. */
const RETRY_MS = 10;

/**
 * Runs transactions one after the other, in the order in which they were asked for. While another program holds the write lock of the file, the first one
 * tries again by a timer, so that the thread serves reads and connections. SQLite's own busy timeout would block the thread.
 */
export class WriteLock {
  private last: Promise<unknown> = Promise.resolve();

  /** `transaction` fails without effect if the file is locked. Errors: DATABASE_UNAVAILABLE if the file is locked for `WAIT_MS` from this call. */
  run<T>(transaction: () => Promise<T>): Promise<T> {
    const end = performance.now() + WAIT_MS;
    const result = this.last.then(() => retryWhileLocked(transaction, end));
    this.last = result.catch(() => {});
    return result;
  }
}

async function retryWhileLocked<T>(transaction: () => Promise<T>, end: number): Promise<T> {
  for (;;) {
    try {
      return await transaction();
    } catch (error) {
      if (!isLocked(error) || performance.now() >= end) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}
