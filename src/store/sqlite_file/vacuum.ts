import { DatabaseSync } from 'node:sqlite';
import { setTimeout as wait } from 'node:timers/promises';
import { isLocked, translateError } from '../sqlite/errors.ts';

/** How much free space was returned to the file system, and how much is left. */
export interface VacuumProgress {
  readonly freedBytes: bigint;
  readonly freeBytes: bigint;
}

/** Pages of one transaction, which blocks the thread and the writers of the server. */
const PAGES = 64;
/** Length of the pause after a transaction, as a multiple of its time. */
const PAUSE_PER_WORK = 2;

/** How long a transaction waits for one of the server, and between two attempts, in milliseconds. */
const WAIT_MS = 4500;
const RETRY_MS = 10;

/**
 * Cuts the space of deleted rows off the end of the file, in short transactions, except about `keepBytes`. Between
 * them, the writers of the server have twice as much time as the last one took. The file becomes shorter when the log
 * is copied into it. Errors: STORAGE_FULL, DATABASE_UNAVAILABLE.
 */
export async function* vacuum(
  path: string,
  signal: AbortSignal,
  keepBytes: number,
): AsyncGenerator<VacuumProgress, void, undefined> {
  const database = new DatabaseSync(path, { timeout: 0 });
  const pragma = (name: string) => Number(Object.values(database.prepare(`pragma ${name}`).get() ?? {})[0]);
  try {
    database.exec('pragma synchronous = full; pragma fullfsync = on; pragma checkpoint_fullfsync = on');
    const pageBytes = pragma('page_size');
    // What other calls free meanwhile is left to the next vacuum, so that this one ends.
    let todo = Math.max(0, pragma('freelist_count') - Math.ceil(keepBytes / pageBytes));
    let freed = 0;
    const progress = () => ({ freedBytes: BigInt(freed * pageBytes), freeBytes: BigInt(todo * pageBytes) });
    yield progress();
    while (todo > 0) {
      signal.throwIfAborted();
      const begun = performance.now();
      const pages = Math.min(todo, PAGES);
      await retryWhileLocked(() => database.exec(`pragma incremental_vacuum(${pages})`));
      todo -= pages;
      freed += pages;
      yield progress();
      await wait((performance.now() - begun) * PAUSE_PER_WORK);
    }
  } catch (error) {
    throw translateError(error);
  } finally {
    database.close();
  }
}

async function retryWhileLocked(work: () => void): Promise<void> {
  for (const begun = performance.now(); ; ) {
    try {
      return work();
    } catch (cause) {
      const error = translateError(cause);
      if (!isLocked(error) || performance.now() - begun > WAIT_MS) throw error;
    }
    await wait(RETRY_MS);
  }
}
