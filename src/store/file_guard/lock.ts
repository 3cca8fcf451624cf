import { closeSync, constants, existsSync, openSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { dirname } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { StoreOpenError } from '../contract/store.ts';

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

/**
 * Adds the address at which this process serves the file to the text that names the holder. The process must hold the
 * lock, and each lock has one address.
 */
export function announceHolder(path: string, address: string): void {
  writeFileSync(holderFile(path), `${holderOf(path)}, at ${address}\n`);
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

/**
 * Rejects a file that can be reached by another path: by a hard link, or because it is mounted. The lock of a file and
 * the log of SQLite are beside it and named after it, so a server that uses another path would see neither. A file
 * that does not exist yet is accepted. Errors: StoreOpenError.
 */
export function refuseOtherNames(path: string): void {
  const file = statSync(path, { throwIfNoEntry: false });
  if (file?.isFile() !== true) return;
  if (file.nlink > 1) throw new StoreOpenError(hasLinks(path, file.nlink));
  if (isMountPoint(path, readMounts())) throw new StoreOpenError(isMounted(path));
}

/** The mounts of this process on Linux: https://docs.kernel.org/filesystems/proc.html. */
export const MOUNTS = '/proc/self/mountinfo';

/** Returns whether a file is itself a mount point. `mounts` is the content of `MOUNTS`. */
export function isMountPoint(path: string, mounts: string): boolean {
  const escaped = path.replace(/[ \t\n\\]/g, (char) => `\\${char.charCodeAt(0).toString(8).padStart(3, '0')}`);
  // The first search is fast in a long table.
  return mounts.includes(` ${escaped} `) && mounts.split('\n').some((line) => line.split(' ')[4] === escaped);
}

export function hasLinks(path: string, links: number | bigint): string {
  return `${path} has ${links} names (hard links). A server that uses another name sees neither the lock nor the log of this one, and acked steps are lost: remove the other links, and start again. To find them: find ${dirname(path)} -xdev -samefile ${path}`;
}

export function isMounted(path: string): string {
  return `${path} is a mount point: the file is mounted without its folder, so another server does not see its lock, and its log ${path}-wal is lost with this folder. Mount the folder of the file instead (docker run -v FOLDER:${dirname(path)}).`;
}

/** Systems other than Linux have no such file, and mount no single files. */
function readMounts(): string {
  try {
    return readFileSync(MOUNTS, 'utf8');
  } catch {
    return '';
  }
}
