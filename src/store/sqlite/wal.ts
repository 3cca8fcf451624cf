import type { LogSize } from '../file_guard/watch.ts';

/** Bytes of commits after which the log is copied into the file. */
const COPY_BYTES = 16 * 1024 * 1024;
/** Size in bytes at which the log is restarted. Equal to the `journal_size_limit` of the writing connection. */
const WAL_BYTES = 64 * 1024 * 1024;

export interface WalDeps {
  readonly size: () => LogSize;
  /**
   * Copies the log into the file and syncs it, beside reads and commits: as far as no read needs older rows. Must run
   * alone.
   */
  readonly copy: () => Promise<void>;
  /** Resolves when no read runs. No read starts until the returned function is called. */
  readonly pauseReaders: () => Promise<() => void>;
  /** Runs work while no transaction runs. */
  readonly pauseWriters: (work: () => Promise<void>) => Promise<void>;
  readonly onFault: (error: unknown) => void;
  readonly limits?: { readonly copyBytes: number; readonly walBytes: number };
}

/**
 * Copies the write-ahead log into the database file, and bounds its size. SQLite itself would copy it within COMMIT,
 * which blocks the thread of the server, and restarts the log only when all of it is copied and no reader uses it.
 * Commits and reads that overlap without end prevent that ("checkpoint starvation",
 * https://www.sqlite.org/wal.html#bigwal), so both are paused for the last part when the log is large.
 */
export class Wal {
  readonly #deps: WalDeps;
  readonly #copyBytes: number;
  readonly #walBytes: number;
  /** Size of the log when the last copy began. */
  #copiedAt = 0;
  #working = false;
  #closed = false;
  #lastCopy: Promise<void> = Promise.resolve();

  constructor(deps: WalDeps) {
    this.#deps = deps;
    this.#copyBytes = deps.limits?.copyBytes ?? COPY_BYTES;
    this.#walBytes = deps.limits?.walBytes ?? WAL_BYTES;
  }

  /**
   * Must be called after each commit. Never throws, because the transaction has committed. A copy that failed, or that
   * readers of older rows delay, is repeated when the log has grown by as much again.
   */
  committed(): void {
    try {
      const { bytes } = this.#deps.size();
      if (bytes < this.#copiedAt) this.#copiedAt = 0;
      if (this.#working || bytes - this.#copiedAt < this.#copyBytes) return;
      this.#copiedAt = bytes;
      this.#working = true;
      void (bytes < this.#walBytes ? this.#copy() : this.empty())
        .catch((error: unknown) => this.#report(error))
        .finally(() => {
          this.#working = false;
        });
    } catch (error) {
      this.#report(error);
    }
  }

  /** Resolves when no copy runs. None begins afterwards: SQLite copies the rest when the file is closed. */
  close(): Promise<void> {
    this.#closed = true;
    return this.#lastCopy;
  }

  /**
   * Copies all of the log into the file, as far as programs outside the server do not read older rows. Reads that start
   * after it use the file only, so the next commit restarts the log. Commits wait only for what was committed last.
   */
  async empty(): Promise<void> {
    await this.#copy();
    const resume = await this.#deps.pauseReaders();
    try {
      await this.#copy();
      await this.#deps.pauseWriters(() => this.#copy());
    } finally {
      resume();
    }
  }

  #report(error: unknown): void {
    if (!this.#closed) this.#deps.onFault(error);
  }

  /**
   * Does not begin if there is nothing to copy: then the next commit restarts the log, and versions of SQLite before
   * 3.51.3 lose rows if a copy begins at that moment (https://www.sqlite.org/wal.html#walresetbug).
   */
  #copy(): Promise<void> {
    const copy = this.#lastCopy.then(async () => {
      if (!this.#closed && !this.#deps.size().isCopied) await this.#deps.copy();
    });
    this.#lastCopy = copy.catch(() => {});
    return copy;
  }
}
