import { readFileSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { DatabaseSync } from 'node:sqlite';
import { StoreOpenError } from '../contract/store.ts';
import { BUSY } from './errors.ts';

/**
 * Ensures that one process writes a file: an exclusive transaction on a small database beside it, which ends with its
 * process. A text file names the holder, because a locked database cannot be read.
 */
export function lockFile(path: string): { release(): void } {
  const lock = new DatabaseSync(`${path}.lock`, { timeout: 0 });
  try {
    lock.exec('begin exclusive');
  } catch (cause) {
    lock.close();
    if ((cause as { errcode?: number }).errcode !== BUSY) throw cause;
    throw new StoreOpenError(
      `${path} is in use by ${holderOf(path)}: stop that server, give it another database, or use Postgres, which many servers can share.`,
      { cause },
    );
  }
  writeFileSync(`${path}.holder`, `process ${process.pid} on ${hostname()}, since ${new Date().toISOString()}\n`);
  return { release: () => lock.close() };
}

function holderOf(path: string): string {
  try {
    return readFileSync(`${path}.holder`, 'utf8').trim();
  } catch {
    return 'another process';
  }
}
