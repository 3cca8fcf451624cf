import { closeSync, constants, existsSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { DatabaseSync } from 'node:sqlite';
import { StoreOpenError } from '../contract/store.ts';
import { refuseOtherNames } from './other_names.ts';

/** SQLite's result code of a locked file. */
const BUSY = 5;

export interface FileLock {
  /** A descriptor of the file, which is opened before SQLite opens it. So nothing else gets the number of its inode. */
  readonly descriptor: number;
  /** All connections to the file must be closed: closing a descriptor drops all locks of the process on the file. */
  release(): void;
}

/**
 * Ensures that one process writes a file: an exclusive transaction on a small database beside it, which ends with its
 * process. A text file names the holder, because a locked database cannot be read. Creates the file if there was none.
 * `path` must have no links: see `resolvePath`. Errors: StoreOpenError.
 */
export function lockFile(path: string): FileLock {
  refuseOtherNames(path);
  const lock = new DatabaseSync(`${path}.lock`, { timeout: 0 });
  try {
    lock.exec('begin exclusive');
    refuseRemoved(path);
    // Before the holder is named: a holder without a file means that the file was removed.
    const descriptor = openSync(path, constants.O_RDWR | constants.O_CREAT, 0o644);
    writeFileSync(holderFile(path), `process ${process.pid} on ${hostname()}, since ${new Date().toISOString()}\n`);
    return {
      descriptor,
      release: () => {
        closeSync(descriptor);
        lock.close();
      },
    };
  } catch (cause) {
    lock.close();
    if ((cause as { errcode?: number }).errcode !== BUSY) throw cause;
    throw new StoreOpenError(
      `${path} is in use by ${holderOf(path)}: stop that server, give it another database, or use Postgres, which many servers can share.`,
      { cause },
    );
  }
}

/** A server that was restarted after its file was lost must not serve an empty database. */
function refuseRemoved(path: string): void {
  if (existsSync(path) || !existsSync(holderFile(path))) return;
  throw new StoreOpenError(
    `${path} does not exist, but ${holderFile(path)} shows that it did: put the file back, or restore a backup (anabranch restore). To begin with an empty database, remove ${holderFile(path)}.`,
  );
}

function holderFile(path: string): string {
  return `${path}.holder`;
}

function holderOf(path: string): string {
  try {
    return readFileSync(holderFile(path), 'utf8').trim();
  } catch {
    return 'another process';
  }
}
