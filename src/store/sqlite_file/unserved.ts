import { existsSync, realpathSync, rmSync, statSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { StoreOpenError } from '../contract/store.ts';
import { refuseForeignFile } from '../file_guard/file_owner.ts';
import { lockFile } from '../file_guard/lock.ts';
import { cannotOpen } from '../file_guard/path.ts';
import { isFileError } from '../sqlite/errors.ts';

/**
 * Rewrites a file that no server uses, without free space. Needs room for the database twice. Returns the sizes before
 * and after. Errors: StoreOpenError.
 */
export function compact(named: string): { readonly before: number; readonly after: number } {
  return whileLocked(named, (path) => {
    const before = statSync(path).size;
    const database = new DatabaseSync(path);
    try {
      database.exec('pragma synchronous = full; vacuum; pragma wal_checkpoint(truncate)');
    } finally {
      database.close();
    }
    return { before, after: statSync(path).size };
  });
}

/** Deletes a file that no server uses, with the files that belong to it. Errors: StoreOpenError. */
export function deleteFile(named: string): void {
  whileLocked(named, (path) => {
    // The log first: without its database it means nothing, but a new database of the name would read it. The holder
    // before the database: without a database, it prevents a start.
    for (const suffix of ['-wal', '-wal.lost', '-shm', '-journal', '.holder', '', '.lock'])
      rmSync(`${path}${suffix}`, { force: true });
  });
}

function whileLocked<T>(named: string, work: (path: string) => T): T {
  if (!existsSync(named)) throw new StoreOpenError(`${named} does not exist.`);
  const path = realpathSync(named);
  let lock: { release(): void } | undefined;
  try {
    refuseForeignFile(path, named);
    lock = lockFile(path);
    return work(path);
  } catch (error) {
    throw isFileError(error) ? cannotOpen(named, error) : error;
  } finally {
    lock?.release();
  }
}
