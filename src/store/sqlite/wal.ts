import { statSync } from 'node:fs';

/** The log may grow to this before it is started anew: as large as SQLite leaves the file when it does so by itself. */
export const WAL_BYTES = 64 * 1024 * 1024;
/** Commits between two looks at its size. */
const COMMITS = 64;

export interface WalDeps {
  /** The database's path. */
  readonly path: string;
  /** Resolves at a moment without readers, which last until the returned function is called. */
  readonly pauseReaders: () => Promise<() => void>;
  /** Moves what is in the log to the database file. */
  readonly checkpoint: () => Promise<void>;
  readonly onFault: (error: unknown) => void;
  readonly limitBytes?: number;
}

/**
 * Keeps the write-ahead log from growing without end. SQLite writes it from the start again only when no reader uses it, and read threads that
 * overlap leave no such moment ("checkpoint starvation", https://www.sqlite.org/wal.html#bigwal). So one is made when it has become large.
 */
export class Wal {
  private readonly deps: WalDeps;
  private commits = 0;
  private restarting = false;

  constructor(deps: WalDeps) {
    this.deps = deps;
  }

  committed(): void {
    this.commits += 1;
    if (this.commits % COMMITS !== 0 || this.restarting || !this.isLarge()) return;
    this.restarting = true;
    this.restart()
      .catch(this.deps.onFault)
      .finally(() => {
        this.restarting = false;
      });
  }

  /** Never throws: the transaction is committed, whatever its log's file says. */
  private isLarge(): boolean {
    const { path, limitBytes = WAL_BYTES, onFault } = this.deps;
    try {
      return (statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0) > limitBytes;
    } catch (error) {
      onFault(error);
      return false;
    }
  }

  /** Readers that begin after the checkpoint read the database file, so the next commit begins the log anew. */
  private async restart(): Promise<void> {
    const resume = await this.deps.pauseReaders();
    try {
      await this.deps.checkpoint();
    } finally {
      resume();
    }
  }
}
