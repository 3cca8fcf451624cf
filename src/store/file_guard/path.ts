import { existsSync, lstatSync, mkdirSync, readlinkSync, realpathSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { StoreOpenError } from '../contract/store.ts';

/**
 * Creates the folder of a file and resolves links, so that one file has one lock. The file need not exist, not even
 * where a link leads to. Errors: StoreOpenError.
 */
export function resolvePath(named: string): string {
  try {
    makeFolders(resolve(dirname(named)));
    return realPathOf(named);
  } catch (error) {
    throw cannotOpen(named, error as Error);
  }
}

/** Damaged pages, a missing table or column, a file that cannot be read, and a file that is no database. */
const DAMAGE = new Set([1, 10, 11, 26]);

/** Returns whether SQLite could not read what it has stored, or returned a number out of range. */
export function isDamage(error: unknown): boolean {
  const { code, errcode } = (error ?? {}) as { code?: unknown; errcode?: unknown };
  return code === 'ERR_OUT_OF_RANGE' || (typeof errcode === 'number' && DAMAGE.has(errcode & 0xff));
}

/** Explains to the operator why a file cannot be opened. */
export function cannotOpen(named: string, cause: Error): StoreOpenError {
  // SQLite quotes what it has read, which can be anything.
  const reason = cause.message.replaceAll(/[\s\p{Cc}]+/gu, ' ');
  const message = isDamage(cause)
    ? `${named} is damaged: ${reason}. Restore a backup (\`anabranch restore\`), or name another file (--database sqlite:PATH).`
    : `${named} cannot be opened as a database: ${reason}. Name another file (--database sqlite:PATH).`;
  return new StoreOpenError(message, { cause });
}

function realPathOf(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  }
  const place = join(realpathSync(dirname(path)), basename(path));
  const isLink = lstatSync(place, { throwIfNoEntry: false })?.isSymbolicLink() === true;
  return isLink ? realPathOf(resolve(dirname(place), readlinkSync(place))) : place;
}

/**
 * Creates one level at a time: Node's recursive mkdir never ends in folders that cannot have children, such as /proc.
 */
function makeFolders(folder: string): void {
  if (existsSync(folder)) return;
  makeFolders(dirname(folder));
  mkdirSync(folder);
}
