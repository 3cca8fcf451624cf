import { AnabranchError } from '../../domain/errors.ts';
import { UniqueViolation } from '../sql/kit/unique_violation.ts';

/** SQLite's result codes that need translation: https://www.sqlite.org/rescode.html. */
const BUSY = 5;
const LOCKED = 6;
const FULL = 13;
const TOO_BIG = 18;
const CONSTRAINT_PRIMARYKEY = 1555;
const CONSTRAINT_UNIQUE = 2067;

/** Returns whether SQLite or the operating system reports that the file, its folder or its content is unusable. */
export function isFileError(error: unknown): error is Error {
  if (!(error instanceof Error)) return false;
  const { code, syscall } = error as { code?: unknown; syscall?: unknown };
  return code === 'ERR_SQLITE_ERROR' || typeof syscall === 'string';
}

/** Returns whether a translated error means that another program has locked the file. */
export function isLocked(error: unknown): boolean {
  const code = (error as { cause?: { errcode?: unknown } } | null)?.cause?.errcode;
  return typeof code === 'number' && (code & 0xff) === BUSY;
}

/** Returns whether a value exceeds the limit of its connection. */
export function isTooBig(error: unknown): boolean {
  return (error as { errcode?: unknown } | null)?.errcode === TOO_BIG;
}

/** Translates errors of `node:sqlite`; unknown ones are returned unchanged. */
export function translateError(error: unknown): unknown {
  const code = (error as { errcode?: unknown } | null)?.errcode;
  if (typeof code !== 'number') return error;
  if (code === CONSTRAINT_PRIMARYKEY || code === CONSTRAINT_UNIQUE) {
    return new UniqueViolation('a row with this key exists', { cause: error });
  }
  const primary = code & 0xff;
  if (primary === FULL) {
    return new AnabranchError(
      'STORAGE_FULL',
      'The disk of the database is full. Nothing was written; reads continue. Free some space, then retry the call.',
      { cause: error },
    );
  }
  if (primary === BUSY || primary === LOCKED) {
    return new AnabranchError(
      'DATABASE_UNAVAILABLE',
      'The database file is locked by another program. Only readers may open it while the server runs. Retry the call.',
      { cause: error },
    );
  }
  return error;
}
