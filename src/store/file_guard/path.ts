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

export function cannotOpen(named: string, cause: Error): StoreOpenError {
  const message = `${named} cannot be opened as a database: ${cause.message}. Name another file (--database sqlite:PATH).`;
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
