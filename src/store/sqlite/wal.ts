import { statSync } from 'node:fs';

/** Size in bytes at which the log is restarted. Equal to the `journal_size_limit` of the writing connection. */
const WAL_BYTES = 64 * 1024 * 1024;
/** Number of commits between two checks of the size. */
const COMMITS = 64;

export interface WalDeps {
  /** Path of the database file. */
  readonly path: string;
  /** Resolves when no read runs. No read starts until the returned function is called. */
  readonly pauseReaders: () => Promise<() => void>;
  /** Copies the content of the log to the database file. */
  readonly checkpoint: () => Promise<void>;
  readonly onFault: (error: unknown) => void;
  readonly limitBytes?: number;
}

/**
 * Bounds the size of the write-ahead log. SQLite restarts the log only when no reader uses it. Continuously overlapping
 * reads prevent that ("checkpoint starvation", https://www.sqlite.org/wal.html#bigwal), so reads are paused when the
 * log is large.
 */
export class Wal {
  readonly #deps: WalDeps;
  #commits = 0;
  #restarting = false;

  constructor(deps: WalDeps) {
    this.#deps = deps;
  }

  committed(): void {
    this.#commits += 1;
    if (this.#commits % COMMITS !== 0 || this.#restarting || !this.#isLarge()) return;
    this.#restarting = true;
    this.empty()
      .catch(this.#deps.onFault)
      .finally(() => {
        this.#restarting = false;
      });
  }

  /**
   * Copies the log into the database file, as far as programs outside the server do not read older rows. Reads that
   * start after it use the database file only, so the next commit restarts the log.
   */
  async empty(): Promise<void> {
    const resume = await this.#deps.pauseReaders();
    try {
      await this.#deps.checkpoint();
    } finally {
      resume();
    }
  }

  /** Never throws, because the transaction has already committed. */
  #isLarge(): boolean {
    const { path, limitBytes = WAL_BYTES, onFault } = this.#deps;
    try {
      return (statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0) > limitBytes;
    } catch (error) {
      onFault(error);
      return false;
    }
  }
}
