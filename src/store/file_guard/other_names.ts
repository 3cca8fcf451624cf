import { readFileSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { StoreOpenError } from '../contract/store.ts';

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
