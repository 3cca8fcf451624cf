import { statSync } from 'node:fs';

/** Which file a path led to. */
export interface Identity {
  readonly dev: bigint;
  readonly ino: bigint;
}

export function identityOf(path: string): Identity {
  const { dev, ino } = statSync(path, { bigint: true });
  return { dev, ino };
}

/** Errors that mean that a path leads to no file. Others, such as EACCES and EIO, tell nothing about the file. */
const MISSING = new Set(['ENOENT', 'ENOTDIR', 'ELOOP', 'ESTALE']);

export function leadsTo(path: string, { dev, ino }: Identity): boolean {
  try {
    const now = identityOf(path);
    return now.dev === dev && now.ino === ino;
  } catch (error) {
    return !MISSING.has((error as NodeJS.ErrnoException).code ?? '');
  }
}
